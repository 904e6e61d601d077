#include "palimpsest/nn/linear.h"

#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/memory/meter.h"
#include "tests/nn/support.h"

#include <sstream>

namespace palimpsest::nn {
namespace {

TEST(Linear, IsLibtorchsLayerWithItsKeysAndInitialValues) {
  torch::manual_seed(5);
  torch::nn::Linear theirs(6, 4);
  torch::manual_seed(5);
  Linear ours(6, 4);
  EXPECT_EQ(keys(*ours), keys(*theirs));
  const auto x = torch::randn({3, 2, 6});
  EXPECT_TRUE(torch::equal(ours->forward(x), theirs->forward(x)));
  EXPECT_EQ(keys(*Linear(torch::nn::LinearOptions(6, 4).bias(false))), std::vector<std::string>{"weight"});
  EXPECT_TRUE(ours->as<torch::nn::Linear>()) << "code that looks for libtorch's layers finds ours";
}

TEST(Linear, KeepsNo16BitCopyOfItsWeight) {
  Linear linear(128, 128);
  const auto x = torch::randn({2, 128}).to(at::kBFloat16).requires_grad_();
  memory::Meter meter;
  const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
  const auto out = linear->forward(x);
  meter.forward_done();
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LT(meter.kept_bytes(), 128 * 128 * 2);
}

TEST(Linear, PrintsItsOptions) {
  std::ostringstream text;
  text << *Linear(6, 4);
  EXPECT_EQ(text.str(), "palimpsest::nn::Linear(in_features=6, out_features=4, bias=true)");
}

}  // namespace
}  // namespace palimpsest::nn
