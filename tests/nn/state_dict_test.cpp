#include "palimpsest/nn/state_dict.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/nn/support.h"

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

}  // namespace
}  // namespace palimpsest::nn
