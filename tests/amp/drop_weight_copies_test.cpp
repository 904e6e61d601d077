#include "palimpsest/amp/drop_weight_copies.h"

#include "palimpsest/memory/counting_allocator.h"
#include "tests/amp/support.h"
#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace palimpsest::amp {
namespace {

using testing::gradients_of;
using testing::kUncached;
using testing::loss_of;
using testing::UsersNet;

TEST(DropWeightCopies, CopiesAreCastAgainAndGradientsStayTheSameToTheLastBit) {
  // bf16: in f16 libtorch's convolution takes oneDNN's reference loops.
  for (const bool cache : {false, true}) {
    torch::manual_seed(1);
    UsersNet net;
    loss_of(net, at::kBFloat16, {.cache = cache}).backward();
    const auto want = gradients_of(net);
    const auto loss = loss_of(net, at::kBFloat16, {.cache = cache});
    const auto dropped = drop_weight_copies(loss);
    EXPECT_EQ(dropped.nodes, 6) << "two convolutions, fc1 and fc2 twice each";
    EXPECT_TRUE(dropped.unknown.empty());
    const int64_t weights = 64 * 27 + 128 * 64 + 2 * (64 * 128 + 5 * 64);
    EXPECT_EQ(dropped.bytes, 2 * weights);
    EXPECT_EQ(drop_weight_copies(loss).nodes, 0) << "dropped already";
    loss.backward();
    const auto got = gradients_of(net);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << "parameter " << i;
  }
}

TEST(DropWeightCopies, LeavesCopiesThatOneCastDoesNotMakeAgain) {
  torch::manual_seed(2);
  const at::Tensor leaf = torch::randn({8, 4, 3, 3}).set_requires_grad(true);
  const at::Tensor x = torch::randn({2, 4, 5, 5}).to(at::kBFloat16).set_requires_grad(true);
  for (const auto& make : {+[](const at::Tensor& t) { return t.to(at::kHalf).to(at::kBFloat16); },
                           +[](const at::Tensor& t) {
                             return t.to(t.options().dtype(at::kBFloat16), false, false,
                                         at::MemoryFormat::ChannelsLast);
                           }}) {
    const auto loss_by = [&] { return torch::conv2d(x, make(leaf)).to(at::kFloat).square().sum(); };
    const at::Tensor want = torch::autograd::grad({loss_by()}, {x})[0];
    const at::Tensor loss = loss_by();
    const auto dropped = drop_weight_copies(loss);
    EXPECT_EQ(dropped.nodes, 0);
    EXPECT_EQ(dropped.unknown, std::vector<std::string>{"ConvolutionBackward0"});
    EXPECT_TRUE(torch::autograd::grad({loss}, {x})[0].equal(want));
  }
}

TEST(DropWeightCopies, LeavesACopyThatWasMadeOnAnotherDevice) {
  const at::Tensor leaf = torch::randn({8, 4}).set_requires_grad(true);
  const at::Tensor x = torch::empty({2, 4}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor copy = leaf.to(at::kMeta).to(at::kBFloat16);
  const auto dropped = drop_weight_copies(torch::mm(x.set_requires_grad(true), copy.t()).sum());
  EXPECT_EQ(dropped.nodes, 0);
  const at::Tensor at_once = leaf.to(at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(drop_weight_copies(torch::mm(x, at_once.t()).sum()).nodes, 0);
}

TEST(DropWeightCopies, FreesTheCopiesAtOnce) {
  torch::manual_seed(1);
  UsersNet net;
  loss_of(net, at::kBFloat16).backward();
  const auto loss = loss_of(net, at::kBFloat16);
  const int64_t before = memory::memory_stats().current_bytes;
  const auto dropped = drop_weight_copies(loss);
  const int64_t freed = before - memory::memory_stats().current_bytes;
  EXPECT_GE(freed, dropped.bytes * 9 / 10);
  loss.backward();
}

TEST(DropWeightCopies, AChangedWeightIsAnErrorInBackward) {
  UsersNet net;
  const auto loss = loss_of(net, at::kBFloat16);
  drop_weight_copies(loss);
  {
    const torch::NoGradGuard no_grad;
    net->conv2->weight.mul_(2);
  }
  EXPECT_NE(palimpsest::testing::error_of([&] {
              loss.backward();
            }).find("a weight must not change between forward and backward"),
            std::string::npos);
}

TEST(DropWeightCopies, AnUnknownLayerIsNamed) {
  const AutocastGuard guard(at::kCPU, at::kBFloat16, kUncached);
  const auto weight = torch::randn({2, 4, 3}).set_requires_grad(true);
  const auto y = at::bmm(torch::randn({2, 5, 4}), weight);
  const auto copies = drop_weight_copies(y);
  EXPECT_EQ(copies.nodes, 0);
  EXPECT_EQ(copies.unknown, std::vector<std::string>{"BmmBackward0"});
}

}  // namespace
}  // namespace palimpsest::amp
