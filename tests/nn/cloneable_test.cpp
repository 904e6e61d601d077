#include "palimpsest/nn/cloneable.h"

#include "palimpsest/nn/batch_norm_act_conv2d.h"
#include "palimpsest/nn/common/module_access.h"
#include "palimpsest/nn/dense_transition.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/linear.h"
#include "tests/nn/dense_block_support.h"

#include <torch/nn/parallel/data_parallel.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::nn {
namespace {

/// A module and its forward, whatever the class.
struct Cloned {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(torch::nn::Module&)> forward;
};

template <class Holder>
Cloned cloned(const std::string& name, const Holder& holder, const at::Tensor& x) {
  using Impl = typename Holder::ContainedType;
  return {name, holder.ptr(), [x](torch::nn::Module& m) {
            const auto type = m.parameters().front().scalar_type();
            return dynamic_cast<Impl&>(m).forward(x.to(type).clone());
          }};
}

std::vector<Cloned> modules() {
  const auto x = leaf({2, 6, 5, 5}).detach(), rows = leaf({3, 6}).detach();
  std::vector<Cloned> all = {
      cloned("BatchNormAct", BatchNormAct(BatchNormActOptions(6).strategy(Strategy::kStoreY)), x),
      cloned("InPlaceABN", InPlaceABN(InPlaceABNOptions(6).slope(0.2)), x),
      cloned("Conv2d", Conv2d(torch::nn::Conv2dOptions(6, 4, 3)), x),
      cloned("Linear", Linear(6, 4), rows),
      cloned("BatchNormActConv2d", BatchNormActConv2d(6, torch::nn::Conv2dOptions(6, 4, 3)), x),
  };
  for (const auto form : kDenseForms) {
    const auto options = DenseBlockOptions(6).layers(3).growth(2).dense_strategy(form);
    all.push_back(cloned("DenseBlock " + to_string(form), DenseBlock(options), x));
    all.push_back(cloned("DenseTransition " + to_string(form),
                         DenseTransition(DenseTransitionOptions(6).dense_strategy(form)), x));
  }
  torch::nn::Sequential net(Conv2d(torch::nn::Conv2dOptions(6, 4, 3)), InPlaceABN(4));
  all.push_back({"Sequential", net.ptr(), [x](torch::nn::Module& m) {
                   return dynamic_cast<torch::nn::SequentialImpl&>(m).forward(
                       x.to(m.parameters().front().scalar_type()).clone());
                 }});
  for (auto& c : all) {
    c.module->to(torch::kFloat64);
    randomize(*c.module);
  }
  return all;
}

void expect_same_state(const torch::nn::Module& got, const torch::nn::Module& want, const std::string& name) {
  const auto a = state_dict(got), b = state_dict(want);
  ASSERT_EQ(a.size(), b.size()) << name;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first) << name;
    EXPECT_EQ(a[i].second.scalar_type(), b[i].second.scalar_type()) << name << " " << a[i].first;
    EXPECT_EQ(a[i].second.requires_grad(), b[i].second.requires_grad()) << name << " " << a[i].first;
    EXPECT_EQ(a[i].second.strides(), b[i].second.strides()) << name << " " << a[i].first;
    EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << name << " " << a[i].first;
    EXPECT_NE(a[i].second.data_ptr(), b[i].second.data_ptr()) << name << " " << a[i].first;
  }
}

/// Every tensor of the module becomes NaN: whoever still reads one shows it.
void destroy(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state_dict(module))
    if (tensor.is_floating_point()) tensor.fill_(std::nan(""));
}

TEST(Cloneable, ACloneGivesTheSameBitsAndSharesNothing) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const bool training : {true, false})
      for (auto& c : modules()) {
        c.module->to(type);
        c.module->train(training);
        const auto copy = c.module->clone(), copy_of_copy = copy->clone();
        expect_same_state(*copy, *c.module, c.name);
        expect_same_state(*copy_of_copy, *c.module, c.name);
        // libtorch's clone() of a Sequential forgets the flag of the container itself.
        for (const auto& m : copy->modules())
          EXPECT_TRUE(m->is_training() == training || m->as<torch::nn::SequentialImpl>()) << c.name;
        const auto want = c.forward(*c.module);
        destroy(*c.module);
        EXPECT_TRUE(torch::equal(c.forward(*copy), want)) << c.name;
        destroy(*copy);
        EXPECT_TRUE(torch::equal(c.forward(*copy_of_copy), want)) << c.name;
      }
}

TEST(Cloneable, ACloneTrainsByItself) {
  for (auto& c : modules()) {
    const auto copy = c.module->clone();
    c.forward(*copy).square().sum().backward();
    for (const auto& p : copy->parameters()) EXPECT_TRUE(p.grad().defined()) << c.name;
    for (const auto& p : c.module->parameters()) EXPECT_FALSE(p.grad().defined()) << c.name;
    const auto counters = state_dict(*c.module);
    for (const auto& [name, tensor] : counters)
      if (name.ends_with("num_batches_tracked")) {
        EXPECT_EQ(tensor.item<int64_t>(), 0) << c.name;
      }
  }
}

TEST(Cloneable, SettingsThatWereChangedAfterConstructionAreCopied) {
  DenseBlock block(DenseBlockOptions(6).layers(2).growth(2));
  block->named_parameters()["denselayer1.conv1.weight"].set_requires_grad(false);
  set_mode(*block, Mode::kFrozenNorms);
  for (const auto& m : block->modules())
    if (auto* norm = m->as<BatchNormActImpl>()) norm->options.eps(0.5);
  const auto copy = block->clone();
  EXPECT_FALSE(copy->named_parameters()["denselayer1.conv1.weight"].requires_grad());
  EXPECT_TRUE(copy->named_parameters()["denselayer1.conv2.weight"].requires_grad());
  const auto from = block->modules(), to = copy->modules();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(to[i]->is_training(), from[i]->is_training());
    if (auto* norm = to[i]->as<BatchNormActImpl>()) {
      EXPECT_EQ(norm->options.eps(), 0.5);
    }
  }
}

TEST(Cloneable, ChannelsLastWeightsStayChannelsLast) {
  Conv2d conv(4, 4, 3);
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  const auto copy = std::dynamic_pointer_cast<Conv2dImpl>(conv->clone());
  EXPECT_TRUE(copy->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(copy->named_parameters()["weight"].is_same(copy->weight));
}

/// A user's module by libtorch's own mechanism, with ours as children.
struct UserNetImpl : torch::nn::Cloneable<UserNetImpl> {
  UserNetImpl() { reset(); }
  void reset() override {
    block = register_module("block", DenseBlock(DenseBlockOptions(3).layers(2).growth(2)));
    conv = register_module("conv", Conv2d(7, 4, 1));
    norm = register_module("norm", InPlaceABN(4));
    last = register_module("last", Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(norm->forward(conv->forward(block->forward(x))).mean({2, 3}));
  }
  DenseBlock block{nullptr};
  Conv2d conv{nullptr};
  InPlaceABN norm{nullptr};
  Linear last{nullptr};
};
TORCH_MODULE(UserNet);

TEST(Cloneable, IsAChildOfLibtorchsCloneableAndOfReplicate) {
  UserNet net;
  net->to(torch::kFloat64);
  randomize(*net);
  net->norm->options.eps(0.5);
  const auto x = leaf({2, 3, 6, 6}).detach();
  const auto replicas = torch::nn::parallel::replicate(net, {at::Device(at::kCPU), at::Device(at::kCPU)});
  const auto want = net->forward(x);
  destroy(*net);
  for (auto replica : replicas) EXPECT_TRUE(torch::equal(replica->forward(x), want));
}

/// By our mechanism, with containers and a member beside them.
struct ContainersImpl : Cloneable<ContainersImpl> {
  ContainersImpl() {
    auto parts = register_module("parts", std::make_shared<torch::nn::Module>());
    conv = parts->register_module("conv", Conv2d(3, 4, 1));
    list = register_module("list", torch::nn::ModuleList(InPlaceABN(4), torch::nn::Conv2d(4, 4, 1)));
    tail = register_module("tail", torch::nn::Sequential());
    norm = InPlaceABN(4);
    tail->push_back("norm", norm);
    tail->push_back("dropout", torch::nn::Dropout(0.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = list->at<InPlaceABNImpl>(0).forward(conv->forward(x));
    return tail->forward(list->at<torch::nn::Conv2dImpl>(1).forward(h));
  }
  void rebind(Clones& clones) override { clones(norm, conv, list, tail); }
  Conv2d conv{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::Sequential tail{nullptr};
  InPlaceABN norm{nullptr};
};
TORCH_MODULE(Containers);

TEST(Cloneable, MembersWithinContainersAreTheContainersCopies) {
  Containers net;
  net->to(torch::kFloat64);
  net->tail->eval();
  const auto copy = std::dynamic_pointer_cast<ContainersImpl>(net->clone());
  expect_same_state(*copy, *net, "containers");
  EXPECT_FALSE(copy->tail->is_training());
  EXPECT_EQ(copy->named_children()["tail"]->named_children()["norm"].get(), copy->norm.get());
  EXPECT_EQ(copy->named_children()["parts"]->named_children()["conv"].get(), copy->conv.get());
  const auto x = leaf({2, 3, 4, 4}).detach();
  const auto want = net->forward(x);
  destroy(*net);
  EXPECT_TRUE(torch::equal(copy->forward(x), want));
}

/// One module with many owners: a member, containers, and a child that is a Cloneable itself.
struct SharedImpl : Cloneable<SharedImpl> {
  SharedImpl() {
    conv = register_module("conv", Conv2d(3, 3, 1));
    plain = register_module("plain", torch::nn::Conv2d(3, 3, 1));
    first = register_module("first", torch::nn::Sequential(conv, plain));
    second = register_module("second", torch::nn::Sequential(plain, conv, torch::nn::ReLU()));
    using Named = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
    dict = register_module("dict", torch::nn::ModuleDict(Named{{"norm", InPlaceABN(3).ptr()}}));
    norm = std::dynamic_pointer_cast<InPlaceABNImpl>((*dict)["norm"]);
    block = register_module("block",
                            BatchNormActConv2d(BatchNormActOptions(3), torch::nn::Conv2dOptions(3, 3, 1)));
    of_block = block->conv;
    list = register_module("list", torch::nn::ModuleList(torch::nn::Sequential(block), conv));
    of_list = (*list)[0]->as<torch::nn::SequentialImpl>()->ptr<BatchNormActConv2dImpl>(0)->norm;
  }
  at::Tensor forward(at::Tensor x) {
    x = second->forward(first->forward(x));
    return of_block->forward(
        of_list->forward(block->forward(norm->forward(x + plain->forward(conv->forward(x))))));
  }
  void rebind(Clones& clones) override {
    clones(conv, plain, first, second, dict, norm, block, of_block, list, of_list);
  }
  Conv2d conv{nullptr}, of_block{nullptr};
  torch::nn::Conv2d plain{nullptr};
  torch::nn::Sequential first{nullptr}, second{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  torch::nn::ModuleList list{nullptr};
  std::shared_ptr<InPlaceABNImpl> norm;
  BatchNormActConv2d block{nullptr};
  BatchNormAct of_list{nullptr};
};

TEST(Cloneable, OneModuleOfManyOwnersStaysOne) {
  const auto net = std::make_shared<SharedImpl>();
  net->to(torch::kFloat64);
  randomize(*net);
  const auto copy = std::dynamic_pointer_cast<SharedImpl>(net->clone());
  expect_same_state(*copy, *net, "shared");
  EXPECT_EQ(copy->named_children()["conv"], copy->conv.ptr());
  EXPECT_EQ(copy->first->ptr(0), copy->conv.ptr());
  EXPECT_EQ(copy->second->ptr(1), copy->conv.ptr());
  EXPECT_EQ(copy->list->ptr(1), copy->conv.ptr());
  EXPECT_EQ(copy->first->ptr(1), copy->plain.ptr());
  EXPECT_EQ(copy->second->ptr(0), copy->plain.ptr());
  EXPECT_EQ((*copy->dict)["norm"], copy->norm);
  EXPECT_EQ(copy->dict->named_children()["norm"], copy->norm);
  EXPECT_EQ(copy->of_block.ptr(), copy->block->conv.ptr());
  EXPECT_EQ(copy->of_list.ptr(), copy->block->norm.ptr());
  EXPECT_EQ(copy->parameters().size(), net->parameters().size());
  const auto x = leaf({2, 3, 4, 4}).detach();
  const auto want = net->forward(x);
  destroy(*net);
  EXPECT_TRUE(torch::equal(copy->forward(x), want));
}

/// A module of the user's own, by libtorch's mechanism, that holds a layer with a second owner.
struct HolderImpl : torch::nn::Cloneable<HolderImpl> {
  explicit HolderImpl(torch::nn::Linear layer) : layer(std::move(layer)) { reset(); }
  void reset() override { register_module("layer", layer = torch::nn::Linear(layer->options)); }
  torch::nn::Linear layer;
};

struct UntiedImpl : Cloneable<UntiedImpl> {
  UntiedImpl() {
    holder = register_module("holder", std::make_shared<HolderImpl>(torch::nn::Linear(2, 2)));
    layer = holder->layer;
  }
  void rebind(Clones& clones) override { clones(holder, layer); }
  std::shared_ptr<HolderImpl> holder;
  torch::nn::Linear layer{nullptr};
};

struct TiedWeightsImpl : Cloneable<TiedWeightsImpl> {
  explicit TiedWeightsImpl(bool of_libtorch) {
    one = register_module("one", Linear(2, 2));
    other = of_libtorch ? torch::nn::Linear(2, 2).ptr() : Linear(2, 2).ptr();
    register_module("other", other);
    other->weight = one->weight;
    ModuleAccess::parameters(*other)["weight"] = one->weight;
  }
  void rebind(Clones& clones) override { clones(one, other); }
  Linear one{nullptr};
  std::shared_ptr<torch::nn::LinearImpl> other;
};

TEST(Cloneable, WhatLibtorchsCloneUntiesIsKeptTiedOrIsAnError) {
  const auto untied = std::dynamic_pointer_cast<UntiedImpl>(std::make_shared<UntiedImpl>()->clone());
  EXPECT_EQ(untied->layer.ptr(), untied->holder->layer.ptr());
  const auto tied =
      std::dynamic_pointer_cast<TiedWeightsImpl>(std::make_shared<TiedWeightsImpl>(false)->clone());
  EXPECT_TRUE(tied->one->weight.is_same(tied->other->weight));
  const auto of_libtorch = std::make_shared<TiedWeightsImpl>(true);
  EXPECT_NE(
      usage_error([&] { of_libtorch->clone(); }).find("'weight' of a torch::nn::LinearImpl has two owners"),
      std::string::npos);
}

enum class Forgotten { kNothing, kModule, kOfBlock, kTensor };

struct ForgetsImpl : Cloneable<ForgetsImpl> {
  explicit ForgetsImpl(Forgotten what) : forgotten(what) {
    conv = register_module("conv", Conv2d(3, 3, 1));
    block = register_module("block",
                            BatchNormActConv2d(BatchNormActOptions(3), torch::nn::Conv2dOptions(3, 3, 1)));
    of_block = block->conv;
    scale = register_parameter("scale", torch::ones({1}));
    register_module("by_name", Linear(2, 2));
  }
  void rebind(Clones& clones) override {
    clones(block);
    if (forgotten != Forgotten::kModule) clones(conv);
    if (forgotten != Forgotten::kOfBlock) clones(of_block);
    if (forgotten != Forgotten::kTensor) clones(scale);
  }
  Forgotten forgotten;
  Conv2d conv{nullptr}, of_block{nullptr};
  BatchNormActConv2d block{nullptr};
  at::Tensor scale;
};

TEST(Cloneable, AForgottenMemberIsAnErrorThatNamesIt) {
  const auto error = [](Forgotten what) {
    return usage_error([&] { std::make_shared<ForgetsImpl>(what)->clone(); });
  };
  EXPECT_NE(error(Forgotten::kModule).find("'conv' of the original"), std::string::npos);
  EXPECT_NE(error(Forgotten::kOfBlock).find("'block.conv' of the original"), std::string::npos);
  EXPECT_NE(error(Forgotten::kTensor).find("'scale' of the original"), std::string::npos);
  EXPECT_TRUE(std::make_shared<ForgetsImpl>(Forgotten::kNothing)->clone());
}

struct SlicedNorm : BatchNormActImpl {
  using BatchNormActImpl::BatchNormActImpl;
};
struct SlicedConv : Conv2dImpl {
  using Conv2dImpl::Conv2dImpl;
};
struct WholeNorm : Cloneable<WholeNorm, BatchNormActImpl> {
  using Cloneable::Cloneable;
  void rebind(Clones& clones) override { BatchNormActImpl::rebind(clones); }
};

TEST(Cloneable, ADerivedClassWithoutACloneOfItsOwnIsAnError) {
  EXPECT_NE(
      usage_error([] { std::make_shared<SlicedNorm>(3)->clone(); }).find("derive it from nn::Cloneable<"),
      std::string::npos);
  EXPECT_NE(usage_error([] { std::make_shared<SlicedConv>(3, 3, 1)->clone(); }).find("no clone() of its own"),
            std::string::npos);
  EXPECT_TRUE(std::dynamic_pointer_cast<WholeNorm>(std::make_shared<WholeNorm>(3)->clone()));
}

TEST(Cloneable, AnAverageOfWeightsFollowsATraining) {
  DenseBlock block(DenseBlockOptions(3).layers(2).growth(2));
  const auto average = std::dynamic_pointer_cast<DenseBlockImpl>(block->clone());
  torch::optim::SGD sgd(block->parameters(), 0.1);
  std::vector<at::Tensor> want;
  for (const auto& p : block->parameters()) want.push_back(p.detach().clone());
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    block->forward(torch::randn({2, 3, 6, 6})).square().mean().backward();
    sgd.step();
    const at::NoGradGuard no_grad;
    auto mean = average->parameters();
    for (std::size_t p = 0; p < mean.size(); ++p) {
      mean[p].lerp_(block->parameters()[p], 0.1);
      want[p].lerp_(block->parameters()[p].detach(), 0.1);
      EXPECT_TRUE(torch::equal(mean[p], want[p]));
      EXPECT_FALSE(torch::equal(mean[p], block->parameters()[p])) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace palimpsest::nn
