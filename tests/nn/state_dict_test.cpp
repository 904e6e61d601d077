#include "palimpsest/nn/state_dict.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/nn/support.h"

#include <algorithm>
#include <stdexcept>

namespace palimpsest::nn {
namespace {

TEST(StateDict, ListsEachModulesParametersThenBuffersThenChildren) {
  torch::nn::Sequential net;
  net->push_back("conv", torch::nn::Conv2d(3, 4, 1));
  net->push_back("norm", InPlaceABN(4));
  net->push_back("last", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 1).bias(false)));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*net)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                             "norm.running_mean", "norm.running_var",
                                             "norm.num_batches_tracked", "last.weight"}));
}

TEST(StateDict, HoldsTheModulesOwnTensors) {
  InPlaceABN norm(4);
  state_dict(*norm)[1].second.detach().fill_(3);
  EXPECT_EQ(norm->bias.sum().item<double>(), 12);
}

/// Conv, normalization, conv, with values that depend on `seed` only.
torch::nn::Sequential make_net(uint64_t seed, int64_t outputs = 2) {
  torch::manual_seed(seed);
  torch::nn::Sequential net;
  net->push_back("conv", torch::nn::Conv2d(3, 4, 1));
  net->push_back("norm", InPlaceABN(4));
  net->push_back("last", torch::nn::Conv2d(4, outputs, 1));
  return net;
}

StateDict copies_of(const torch::nn::Module& module) {
  StateDict dict;
  for (const auto& [name, tensor] : state_dict(module)) dict.emplace_back(name, tensor.detach().clone());
  return dict;
}

at::Tensor& of(StateDict& dict, const std::string& name) {
  for (auto& [key, tensor] : dict)
    if (key == name) return tensor;
  throw std::out_of_range(name);
}

void expect_equal(StateDict a, StateDict b) {
  for (auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, of(b, name))) << name;
}

TEST(StateDict, LoadsByNameInAnyOrderAndDtypeAndKeepsTheModulesTensors) {
  auto net = make_net(1);
  StateDict dict = copies_of(*make_net(2));
  std::reverse(dict.begin(), dict.end());
  const at::Tensor weight = (*net)[0]->as<torch::nn::Conv2d>()->weight;
  weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  const void* address = weight.data_ptr();
  EXPECT_TRUE(load_state_dict(*net, dict).empty());
  expect_equal(copies_of(*net), dict);
  EXPECT_EQ(weight.data_ptr(), address);
  EXPECT_TRUE(weight.requires_grad());

  of(dict, "conv.weight") = of(dict, "conv.weight").to(torch::kDouble);
  load_state_dict(*net, dict);
  EXPECT_EQ(weight.scalar_type(), torch::kFloat);
  EXPECT_THROW(load_state_dict(*net, dict, {.same_dtype = true}), Error);
}

TEST(StateDict, ADifferenceIsAnErrorThatCountsAndNamesTheKeysAndChangesNothing) {
  auto net = make_net(1);
  const StateDict before = copies_of(*net);
  StateDict dict = copies_of(*make_net(2, /*outputs=*/5));
  of(dict, "last.bias") = torch::zeros({2}, torch::kInt64);
  std::erase_if(dict, [](const auto& entry) { return entry.first == "conv.weight"; });
  dict.emplace_back("extra", torch::zeros(1));
  const StateDictDiff diff = compare(dict, before);
  EXPECT_EQ(
      diff.text(),
      "1 missing key (conv.weight); 1 unexpected key (extra); 2 of another shape or type (last.weight is "
      "(5, 4, 1, 1) instead of (2, 4, 1, 1), last.bias is int64 instead of float32)");
  LoadOptions options;
  options.source = "'weights'";
  options.way_out = "take another file";
  try {
    load_state_dict(*net, dict, options);
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_EQ(std::string(error.what()),
              "'weights' does not fit the model: " + diff.text() + "; take another file");
  }
  expect_equal(copies_of(*net), before);
}

TEST(StateDict, TensorsWithoutValuesAndNamesThereTwiceAreErrorsThatChangeNothing) {
  auto net = make_net(1);
  const StateDict before = copies_of(*net);
  const auto expect_refused = [&](const StateDict& dict, const std::string& text) {
    for (const bool strict : {true, false}) {
      try {
        load_state_dict(*net, dict, {.strict = strict});
        ADD_FAILURE() << "expected an Error: " << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      }
    }
    expect_equal(copies_of(*net), before);
  };
  StateDict dict = copies_of(*make_net(2));
  of(dict, "conv.weight") = at::Tensor();
  expect_refused(dict, "conv.weight is an undefined tensor");
  of(dict, "conv.weight") = torch::empty({4, 3, 1, 1}, torch::kMeta);
  expect_refused(dict, "conv.weight has no values (device meta)");
  dict = copies_of(*make_net(2));
  dict.push_back(dict.front());
  expect_refused(dict, "the state dict holds two tensors named " + dict.front().first);

  dict = copies_of(*make_net(2));  // a counter is not compared, and not read where it has no value
  for (auto& [name, tensor] : dict)
    if (is_batch_counter(name)) tensor = at::Tensor();
  EXPECT_TRUE(load_state_dict(*net, dict).empty());
}

TEST(StateDict, WithoutStrictTheKeysThatFitAreLoadedAndTheOthersReturned) {
  auto net = make_net(1);
  const StateDict before = copies_of(*net);
  StateDict dict = copies_of(*make_net(2));
  std::erase_if(dict, [](const auto& entry) { return entry.first == "last.weight"; });
  dict.emplace_back("extra", torch::zeros(1));
  const StateDictDiff diff = load_state_dict(*net, dict, {.strict = false});
  EXPECT_EQ(diff.missing, std::vector<std::string>{"last.weight"});
  EXPECT_EQ(diff.unexpected, std::vector<std::string>{"extra"});
  StateDict after = copies_of(*net), fresh = before;
  EXPECT_TRUE(torch::equal(of(after, "conv.weight"), of(dict, "conv.weight")));
  EXPECT_TRUE(torch::equal(of(after, "last.weight"), of(fresh, "last.weight")));
  of(dict, "conv.weight") = torch::zeros({4, 3, 3, 3});
  EXPECT_THROW(load_state_dict(*net, dict, {.strict = false}), Error) << "another shape is always an error";
}

TEST(StateDict, CountersOfBatchesMayBeMissingLeftOverOrOfShapeOne) {
  auto net = make_net(1);
  StateDict dict = copies_of(*make_net(2));
  const std::string counter = "norm.num_batches_tracked";
  of(dict, counter) = torch::full({1}, 7, torch::kInt64);
  dict.emplace_back("gone.num_batches_tracked", torch::zeros({}, torch::kInt64));
  load_state_dict(*net, dict);
  StateDict loaded = copies_of(*net);
  EXPECT_EQ(of(loaded, counter).item<int64_t>(), 7);
  std::erase_if(dict, [&](const auto& entry) { return entry.first == counter; });
  load_state_dict(*net, dict);
  loaded = copies_of(*net);
  EXPECT_EQ(of(loaded, counter).item<int64_t>(), 7) << "stays as it is";
}

}  // namespace
}  // namespace palimpsest::nn
