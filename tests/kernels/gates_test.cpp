#include "palimpsest/kernels/gates.h"

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "tests/support/compare.h"

#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace palimpsest::kernels {
namespace {

constexpr uint64_t kSeed = 11;

/// Values in [low, high) behind `misaligned` floats.
struct Values {
  std::vector<float> memory;
  std::size_t first;

  Values(int64_t count, bool misaligned, double low = 0, double high = 0, uint64_t stream = 0)
      : memory(static_cast<std::size_t>(count) + misaligned), first(misaligned) {
    Random random = Random::stream(kSeed, stream);
    for (float& v : memory) v = static_cast<float>(random.uniform(low, high));
  }
  float* data() { return memory.data() + first; }
  std::span<const float> span() const { return {memory.data() + first, memory.size() - first}; }
};

/// The results of the four functions for one problem.
struct Results {
  Values means, product, dgate, product_again, dy;

  explicit Results(const Shape3& s, bool misaligned)
      : means(s.n * s.c, misaligned),
        product(s.elements(), misaligned),
        dgate(s.n * s.c, misaligned),
        product_again(s.elements(), misaligned),
        dy(s.elements(), misaligned) {}
};

using Case = std::tuple<Activation, int64_t, int64_t, bool>;  // channels, pixels, misaligned
class Gates : public ::testing::TestWithParam<Case> {};

TEST_P(Gates, EqualTheReference) {
  const auto& [activation, channels, pixels, misaligned] = GetParam();
  const GatesProblem problem{{2, channels, pixels}, activation, 0.1};
  const Shape3& s = problem.shape;
  if (!cpu::has_gates(problem)) GTEST_SKIP() << "fewer channels than a vector has lanes";
  Values y(s.elements(), misaligned, -4, 4, 1), dproduct(s.elements(), misaligned, -1, 1, 2),
      gate(s.n * s.c, misaligned, 0, 1, 3), dmean(s.n * s.c, misaligned, -0.1, 0.1, 4);
  Results got(s, misaligned), want(s, misaligned);
  reference::activation_means(problem, y.data(), want.means.data());
  reference::gated_forward(problem, y.data(), gate.data(), want.product.data());
  reference::gated_backward_reduce(problem, y.data(), gate.data(), dproduct.data(), want.dgate.data(),
                                   want.product_again.data());
  reference::gated_backward_apply(problem, y.data(), gate.data(), dmean.data(), dproduct.data(),
                                  want.dy.data());
  cpu::activation_means(problem, y.data(), got.means.data());
  cpu::gated_forward(problem, y.data(), gate.data(), got.product.data());
  cpu::gated_backward_reduce(problem, y.data(), gate.data(), dproduct.data(), got.dgate.data(),
                             got.product_again.data());
  cpu::gated_backward_apply(problem, y.data(), gate.data(), dmean.data(), dproduct.data(), got.dy.data());
  const testing::Tolerance limit = testing::tolerance(DType::f32);
  EXPECT_TRUE(testing::close(got.means.span(), want.means.span(), limit, kSeed));
  EXPECT_TRUE(testing::close(got.product.span(), want.product.span(), limit, kSeed));
  EXPECT_TRUE(testing::close(got.dgate.span(), want.dgate.span(), limit, kSeed));
  EXPECT_TRUE(testing::close(got.dy.span(), want.dy.span(), limit, kSeed));
  EXPECT_TRUE(testing::same_bytes(got.product_again.span(), got.product.span()));

  // Without the product, and over the incoming gradient, the same bytes.
  Results again(s, misaligned);
  cpu::gated_backward_reduce(problem, y.data(), gate.data(), dproduct.data(), again.dgate.data(), nullptr);
  EXPECT_TRUE(testing::same_bytes(again.dgate.span(), got.dgate.span()));
  cpu::gated_backward_apply(problem, y.data(), gate.data(), dmean.data(), dproduct.data(), dproduct.data());
  EXPECT_TRUE(testing::same_bytes(dproduct.span(), got.dy.span()));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [activation, name, is_listed] : kActivations)
    for (const int64_t channels : {16, 17, 33}) all.emplace_back(activation, channels, 49, false);
  // Sizes around a vector, a part of the channels and a run of the sum.
  for (const int64_t channels : {16, 31, 32, 513})
    for (const int64_t pixels : {1, 5, 130})
      for (const bool misaligned : {false, true})
        all.emplace_back(Activation::kSiLU, channels, pixels, misaligned);
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [activation, channels, pixels, misaligned] = info.param;
  return std::string(kActivations.name(activation)) + "_" + std::to_string(channels) + "_" +
         std::to_string(pixels) + (misaligned ? "_misaligned" : "");
}

INSTANTIATE_TEST_SUITE_P(Grid, Gates, ::testing::ValuesIn(cases()), name_of);

TEST(GatesContract, FewChannelsAndNoValuesAreNotTaken) {
  const int64_t lanes = cpu::current_instruction_set().gates.lanes;
  EXPECT_TRUE(cpu::has_gates({{1, lanes, 1}}));
  EXPECT_FALSE(cpu::has_gates({{1, lanes - 1, 1}}));
  EXPECT_FALSE(cpu::has_gates({{0, lanes, 1}}));
}

}  // namespace
}  // namespace palimpsest::kernels
