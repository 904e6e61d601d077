// kernels/cuda/upsampled_loss.h, executed by the emulator, against the reference.
#include "palimpsest/kernels/cuda/upsampled_loss.h"

#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/upsampled_loss_case.h"

#include <gtest/gtest.h>

#include <numeric>

namespace palimpsest::testing {
namespace {

template <class T>
struct Result {
  CrossEntropySums sums;
  std::vector<T> gradient;
  std::vector<double> hardness;
};

/// Runs the steps as ops/upsampled_loss/device_cuda.cpp does; `selected` may be empty.
template <class T>
Result<T> run(const UpsampledInputs<T>& inputs, const CrossEntropyRules& rules,
              const std::vector<uint8_t>& selected = {}) {
  Result<T> result{{}, std::vector<T>(inputs.x.size()), std::vector<double>(inputs.ids.size())};
  std::vector<double> log_sum(inputs.ids.size());
  std::vector<uint64_t> workspace(
      static_cast<std::size_t>(kernels::cuda::upsampled_losses_workspace_bytes(inputs.problem) / 8));
  double sums[4];
  const uint8_t* const mask = selected.empty() ? nullptr : selected.data();
  kernels::cuda::upsampled_losses(inputs.problem, inputs.x.data(), inputs.targets(), rules, mask,
                                  {log_sum.data(), result.hardness.data(), sums, workspace.data()}, nullptr);
  kernels::cuda::upsampled_gradient(inputs.problem, inputs.x.data(), inputs.targets(), rules, mask,
                                    log_sum.data(), result.gradient.data(), nullptr);
  const bool wrong = sums[3] < static_cast<double>(inputs.ids.size());
  result.sums = {sums[0], sums[1], static_cast<int64_t>(sums[2]), wrong ? static_cast<int64_t>(sums[3]) : -1};
  return result;
}

template <class T>
class CudaUpsampledLoss : public ::testing::Test {
 public:
  static constexpr double kTolerance = std::is_same_v<T, double> ? 1e-13 : 1e-6;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(CudaUpsampledLoss, Types);

TYPED_TEST(CudaUpsampledLoss, IsTheReference) {
  int number = 0;
  for (const UpsampledCase& c : upsampled_cases()) {
    if (c.n * c.out.h * c.out.w > 5000) continue;  // the emulator takes its time
    const WithOrder order(kOrders[number % 3]);
    const UpsampledInputs<TypeParam> inputs(c, kLayouts[number / 2 % 2], number % 2 != 0, 4);
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const CrossEntropyRules& rules :
         {CrossEntropyRules{}, CrossEntropyRules{.weight = inputs.weight.data(), .label_smoothing = 0.1}}) {
      const Result<TypeParam> got = run(inputs, rules);
      std::vector<TypeParam> truth(inputs.x.size());
      const CrossEntropySums want = kernels::reference::upsampled_cross_entropy(
          inputs.problem, inputs.x.data(), inputs.targets(), rules, truth.data());
      EXPECT_EQ(got.sums.count, want.count);
      EXPECT_EQ(got.sums.first_wrong, -1);
      EXPECT_NEAR(got.sums.weight, want.weight, 1e-12 * (1 + want.weight));
      EXPECT_NEAR(got.sums.loss, want.loss, this->kTolerance * (1 + std::abs(want.loss)));
      EXPECT_LE(largest_difference(got.gradient, truth), this->kTolerance);
    }
    ++number;
  }
}

TYPED_TEST(CudaUpsampledLoss, RanksPixelsInF64AndCountsThoseThatAreSelected) {
  const UpsampledInputs<TypeParam> inputs({2, 5, {3, 4}, {18, 21}}, Layout::kNCHW, false, 4);
  const CrossEntropyRules rules{.share = 0.25};
  const std::vector<double> hardness = run(inputs, {}).hardness;
  std::vector<uint8_t> selected(hardness.size());
  const auto pixels = static_cast<std::ptrdiff_t>(18 * 21);
  for (std::ptrdiff_t n = 0; n < 2; ++n) {
    std::vector<std::ptrdiff_t> order(static_cast<std::size_t>(pixels));
    std::iota(order.begin(), order.end(), n * pixels);
    const auto at = [&](std::ptrdiff_t i) { return hardness[static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return at(a) > at(b); });
    const auto valid = std::count_if(order.begin(), order.end(), [&](auto i) { return at(i) > -HUGE_VAL; });
    order.resize(static_cast<std::size_t>(std::ceil(0.25 * static_cast<double>(valid))));
    for (const auto i : order) selected[static_cast<std::size_t>(i)] = 1;
  }
  const Result<TypeParam> got = run(inputs, {}, selected);
  std::vector<TypeParam> truth(inputs.x.size());
  const CrossEntropySums want = kernels::reference::upsampled_cross_entropy(
      inputs.problem, inputs.x.data(), inputs.targets(), rules, truth.data());
  EXPECT_EQ(got.sums.count, want.count);
  EXPECT_NEAR(got.sums.loss, want.loss, this->kTolerance * (1 + want.loss));
  EXPECT_LE(largest_difference(got.gradient, truth), this->kTolerance);
}

TYPED_TEST(CudaUpsampledLoss, NamesTheFirstWrongTargetAndIgnoresIt) {
  UpsampledInputs<TypeParam> inputs({2, 3, {2, 2}, {30, 30}}, Layout::kChannelsLast, false, 1);
  inputs.ids[1500] = inputs.ids[700] = 3;
  EXPECT_EQ(run(inputs, {}).sums.first_wrong, 700);
  auto ignored = inputs;
  ignored.ids[1500] = ignored.ids[700] = 255;
  EXPECT_EQ(run(inputs, {}).gradient, run(ignored, {}).gradient);
}

TYPED_TEST(CudaUpsampledLoss, TheOrderOfThreadsDoesNotChangeAByte) {
  const UpsampledInputs<TypeParam> inputs({1, 7, {5, 6}, {40, 33}}, Layout::kNCHW, true, 4);
  const Result<TypeParam> first = run(inputs, {.label_smoothing = 0.1});
  for (const auto order : kOrders) {
    const WithOrder with(order);
    const Result<TypeParam> again = run(inputs, {.label_smoothing = 0.1});
    EXPECT_EQ(again.gradient, first.gradient);
    EXPECT_EQ(again.sums.loss, first.sums.loss);
  }
}

TYPED_TEST(CudaUpsampledLoss, AClassThatCannotBeIsNoNaNAndLargeLogitsKeepTheirDigits) {
  UpsampledInputs<TypeParam> inputs({1, 5, {4, 4}, {8, 8}}, Layout::kChannelsLast, false, 1);
  for (std::size_t i = 3; i < inputs.x.size(); i += 5) inputs.x[i] = static_cast<TypeParam>(-HUGE_VAL);
  for (int64_t& id : inputs.ids) id = id == 3 ? 2 : id;
  std::vector<TypeParam> truth(inputs.x.size());
  const auto want = kernels::reference::upsampled_cross_entropy(inputs.problem, inputs.x.data(),
                                                                inputs.targets(), {}, truth.data());
  const Result<TypeParam> got = run(inputs, {});
  EXPECT_NEAR(got.sums.loss, want.loss, this->kTolerance * (1 + want.loss));
  EXPECT_LE(largest_difference(got.gradient, truth), this->kTolerance);

  UpsampledInputs<TypeParam> large({1, 5, {4, 4}, {4, 4}}, Layout::kNCHW, false, 1);
  for (TypeParam& value : large.x) value += static_cast<TypeParam>(1e5);
  kernels::reference::upsampled_cross_entropy(large.problem, large.x.data(), large.targets(), {},
                                              truth.data());
  EXPECT_LE(largest_difference(run(large, {}).gradient, truth), this->kTolerance);
}

TYPED_TEST(CudaUpsampledLoss, ArgmaxIsTheReference) {
  for (const Layout layout : kLayouts) {
    UpsampledInputs<TypeParam> inputs({2, 19, {4, 5}, {17, 26}}, layout, false, 4);
    inputs.x[3] = static_cast<TypeParam>(NAN);
    std::vector<int64_t> ids(inputs.ids.size()), truth(inputs.ids.size());
    kernels::cuda::upsampled_argmax(inputs.problem, inputs.x.data(), ids.data(), nullptr);
    kernels::reference::upsampled_argmax(inputs.problem, inputs.x.data(), false, truth.data());
    int64_t others = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) others += ids[i] != truth[i];
    EXPECT_LE(others, 1) << "two logits that f32 rounds to one";
  }
}

}  // namespace
}  // namespace palimpsest::testing
