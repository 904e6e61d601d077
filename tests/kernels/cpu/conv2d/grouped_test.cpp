#include "palimpsest/kernels/cpu/conv2d/grouped.h"

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/conv2d.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <ostream>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;
using kernels::convolved_size;

constexpr uint64_t kConvSeed = 17;
constexpr Conv2dPass kPasses[] = {Conv2dPass::kForward, Conv2dPass::kBackwardInput,
                                  Conv2dPass::kBackwardWeight};

struct GroupedCase {
  int64_t n, c, group;
  Pair2 in;
  int64_t stride;
  Pair2 padding;

  Conv2dProblem problem() const {
    return {
        .n = n,
        .c_in = c,
        .c_out = c,
        .groups = c / group,
        .in = in,
        .out = {convolved_size(in.h, 3, stride, padding.h, 1), convolved_size(in.w, 3, stride, padding.w, 1)},
        .kernel_size = {3, 3},
        .stride = {stride, stride},
        .padding = padding,
        .dilation = {1, 1}};
  }
};

std::ostream& operator<<(std::ostream& out, const GroupedCase& c) {
  return out << "(" << c.n << ", " << c.c << ", " << c.in.h << ", " << c.in.w << "), groups of " << c.group
             << ", stride " << c.stride << ", padding " << c.padding.h << "x" << c.padding.w;
}

/// Sizes around the strips of the kernels, paddings up to more than the image, channels of one vector, of
/// several, and of vectors that overlap.
std::vector<GroupedCase> grouped_cases() {
  std::vector<GroupedCase> all;
  const int64_t sizes[] = {1, 2, 3, 5, 6, 7, 8, 13, 14, 15, 16, 28, 29};
  for (const int64_t group : {2, 4, 8, 16})
    for (const int64_t stride : {1, 2})
      for (const int64_t padding : {0, 1, 2})
        for (const int64_t width : sizes) {
          const int64_t height = 1 + (width * 3 + padding + group) % 6;
          all.push_back({1, 16, group, {height, width}, stride, {2 - height % 2, padding}});
          all.push_back({1, 16, group, {width, height}, stride, {padding, 1}});
        }
  for (const int64_t group : {2, 4, 8, 16})
    for (const int64_t stride : {1, 2})
      for (const int64_t channels : {16, 18, 20, 24, 30, 32, 48, 64})
        if (channels % group == 0) all.push_back({3, channels, group, {9, 16}, stride, {1, 1}});
  std::erase_if(all, [](const GroupedCase& c) { return c.problem().out.h < 1 || c.problem().out.w < 1; });
  return all;
}

/// Values between guards, which no kernel may write, off a vector's boundary by any distance.
class ConvTensor {
 public:
  explicit ConvTensor(int64_t size, int64_t misaligned_by = 0)
      : begin_(kGuard + misaligned_by),
        size_(size),
        values_(static_cast<std::size_t>(size + 2 * kGuard + 1), kMark) {}

  float* data() { return values_.data() + begin_; }
  std::span<const float> values() const { return std::span(values_).subspan(begin_, size_); }
  bool guards_hold() const {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if ((i < begin_ || i >= begin_ + size_) && values_[i] != kMark) return false;
    return true;
  }
  ConvTensor& draw(Random& random) {
    for (std::size_t i = 0; i < size_; ++i) data()[i] = static_cast<float>(random.uniform(-1, 1));
    return *this;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr float kMark = 1234.5f;
  std::size_t begin_, size_;
  std::vector<float> values_;
};

int64_t in_size(const Conv2dProblem& problem) {
  return problem.n * problem.in.h * problem.in.w * problem.c_in;
}
int64_t out_size(const Conv2dProblem& problem) {
  return problem.n * problem.out.h * problem.out.w * problem.c_out;
}

struct ConvTensors {
  ConvTensor x, w, y;  // each stands for its gradient, too

  explicit ConvTensors(const Conv2dProblem& problem, int64_t misaligned_by = 0)
      : x(in_size(problem), misaligned_by),
        w(problem.weights(), misaligned_by),
        y(out_size(problem), misaligned_by) {
    Random random(kConvSeed);
    x.draw(random), w.draw(random), y.draw(random);
  }
};

using ConvForward = void (*)(const Conv2dProblem&, const float*, const float*, float*);
struct ConvPasses {
  ConvForward forward, backward_input, backward_weight;
};
constexpr ConvPasses kGrouped{kernels::cpu::conv2d::grouped_forward,
                              kernels::cpu::conv2d::grouped_backward_input,
                              kernels::cpu::conv2d::grouped_backward_weight};
constexpr ConvPasses kReference{kernels::reference::conv2d_forward,
                                [](const Conv2dProblem& problem, const float* dy, const float* w, float* dx) {
                                  kernels::reference::conv2d_backward_input(problem, dy, w, nullptr, dx);
                                },
                                kernels::reference::conv2d_backward_weight};

/// The result of that pass.
ConvTensor result_of(const ConvPasses& passes, Conv2dPass pass, const Conv2dProblem& problem, ConvTensors& t,
                     int64_t misaligned_by = 0) {
  switch (pass) {
    case Conv2dPass::kForward: {
      ConvTensor y(out_size(problem), misaligned_by);
      passes.forward(problem, t.x.data(), t.w.data(), y.data());
      return y;
    }
    case Conv2dPass::kBackwardInput: {
      ConvTensor dx(in_size(problem), misaligned_by);
      passes.backward_input(problem, t.y.data(), t.w.data(), dx.data());
      return dx;
    }
    default: {
      ConvTensor dw(problem.weights(), misaligned_by);
      passes.backward_weight(problem, t.x.data(), t.y.data(), dw.data());
      return dw;
    }
  }
}

class GroupedConv2d : public ::testing::TestWithParam<Conv2dPass> {};

TEST_P(GroupedConv2d, EqualsTheReferenceOnEverySizeStrideAndPadding) {
  int64_t shift = 0;
  for (const GroupedCase& c : grouped_cases()) {
    const Conv2dProblem problem = c.problem();
    ASSERT_TRUE(kernels::cpu::conv2d::fits_grouped(problem)) << c;
    shift = 1 - shift;
    ConvTensors t(problem, shift);
    const ConvTensor got = result_of(kGrouped, GetParam(), problem, t, shift);
    const ConvTensor want = result_of(kReference, GetParam(), problem, t);
    EXPECT_TRUE(close(got.values(), want.values(), tolerance(DType::f32), kConvSeed)) << c;
    EXPECT_TRUE(got.guards_hold()) << c;
  }
}

TEST_P(GroupedConv2d, LargeSumsAreAsExact) {
  for (const GroupedCase& c :
       {GroupedCase{5, 16, 16, {30, 30}, 1, {1, 1}}, GroupedCase{9, 32, 2, {24, 17}, 1, {1, 1}}}) {
    const Conv2dProblem problem = c.problem();
    ConvTensors t(problem);
    EXPECT_TRUE(close(result_of(kGrouped, GetParam(), problem, t).values(),
                      result_of(kReference, GetParam(), problem, t).values(), tolerance(DType::f32),
                      kConvSeed))
        << c;
  }
}

TEST_P(GroupedConv2d, TheNumberOfThreadsDoesNotChangeAByte) {
  const int before = omp_get_max_threads();
  for (const int64_t stride : {1, 2}) {
    const Conv2dProblem problem = GroupedCase{5, 48, 4, {29, 37}, stride, {1, 1}}.problem();
    ConvTensors t(problem);
    omp_set_num_threads(1);
    const ConvTensor one = result_of(kGrouped, GetParam(), problem, t);
    for (const int threads : {2, 3, 5}) {
      omp_set_num_threads(threads);
      EXPECT_TRUE(same_bytes(result_of(kGrouped, GetParam(), problem, t).values(), one.values()))
          << threads << " threads";
    }
  }
  omp_set_num_threads(before);
}

// NaN and infinity must appear exactly where the formula takes them: one at a time, in each tensor, at its
// corners, borders and inside, where padding and neighbouring groups are near.
TEST_P(GroupedConv2d, NotANumberGoesWhereTheFormulaTakesItAndNowhereElse) {
  for (const GroupedCase& c :
       {GroupedCase{2, 16, 2, {4, 9}, 1, {1, 1}}, GroupedCase{1, 32, 8, {5, 15}, 2, {1, 2}},
        GroupedCase{1, 16, 16, {3, 8}, 1, {2, 0}}, GroupedCase{1, 20, 4, {1, 2}, 1, {2, 2}}}) {
    const Conv2dProblem problem = c.problem();
    const ConvTensors clean(problem);
    for (ConvTensor ConvTensors::* tensor : {&ConvTensors::x, &ConvTensors::w, &ConvTensors::y})
      for (const float value : {std::nanf(""), HUGE_VALF}) {
        const auto size = static_cast<int64_t>((clean.*tensor).values().size());
        for (int64_t at = 0; at < size; at += 1 + size / 60) {
          ConvTensors t = clean;
          (t.*tensor).data()[at] = value;
          const ConvTensor got = result_of(kGrouped, GetParam(), problem, t);
          const ConvTensor want = result_of(kReference, GetParam(), problem, t);
          for (std::size_t i = 0; i < want.values().size(); ++i)
            ASSERT_EQ(std::isfinite(got.values()[i]), std::isfinite(want.values()[i]))
                << c << ", " << value << " at " << at << ", result " << i;
        }
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, GroupedConv2d, ::testing::ValuesIn(kPasses), [](const auto& info) {
  return info.param == Conv2dPass::kForward         ? "Forward"
         : info.param == Conv2dPass::kBackwardInput ? "BackwardInput"
                                                    : "BackwardWeight";
});

TEST(GroupedConv2dFits, TakesNarrowGroupsOfThreeByThreeAlone) {
  const Conv2dProblem good = GroupedCase{1, 32, 4, {9, 9}, 1, {1, 1}}.problem();
  const auto fits = [&](auto change) {
    Conv2dProblem problem = good;
    change(problem);
    return kernels::cpu::conv2d::fits_grouped(problem);
  };
  EXPECT_TRUE(fits([](Conv2dProblem&) {}));
  EXPECT_TRUE(fits([](Conv2dProblem& p) { p.padding = {0, 2}; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.groups = 32; })) << "groups of 1";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.groups = 1; })) << "groups of 32";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_in = p.c_out = 24, p.groups = 4; })) << "groups of 6";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_out = 64; })) << "more channels out";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_in = 64; })) << "more channels in";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_in = p.c_out = 2, p.groups = 1; })) << "less than a vector";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.kernel_size.h = 1; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.kernel_size.w = 5; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.dilation = {2, 2}; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.dilation.w = 2; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.stride.w = 2; })) << "different strides";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.stride = {3, 3}; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.padding.h = 3; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.padding.w = -1; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.out.h = 0; })) << "no output";
}

}  // namespace
}  // namespace palimpsest::testing
