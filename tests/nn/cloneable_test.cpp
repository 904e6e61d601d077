#include "palimpsest/nn/cloneable.h"

#include "palimpsest/nn/batch_norm_act_conv2d.h"
#include "palimpsest/nn/dense_transition.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/linear.h"
#include "tests/nn/dense_block_support.h"

#include <torch/nn/parallel/data_parallel.h>

#include <functional>

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
