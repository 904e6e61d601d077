#include "palimpsest/base/half.h"
#include "palimpsest/kernels/cpu/conv2d/winograd.h"
#include "tests/kernels/cpu/conv2d/conv2d_case.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

// Convolutions of images in 16 bits: their results are those of the f32 kernels on the same values, rounded once.
// The tests of those kernels compare them with the reference.
namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

constexpr uint64_t kHalfImagesSeed = 47;

const char* name_of(Conv2dPass pass) {
  return pass == Conv2dPass::kForward         ? "forward"
         : pass == Conv2dPass::kBackwardInput ? "backward input"
                                              : "backward weight";
}

/// 16-bit values at an odd address of values, between guards that a kernel must leave alone.
template <class S>
class GuardedHalves {
 public:
  explicit GuardedHalves(std::size_t count) : values_(count + 2 * kGuard, S(kGuardValue)) {}
  /// Rounds `values`, and writes what was rounded back.
  explicit GuardedHalves(std::span<float> values) : GuardedHalves(values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      data()[i] = S(double{values[i]});
      values[i] = static_cast<float>(static_cast<double>(data()[i]));
    }
  }

  S* data() { return values_.data() + kGuard; }
  std::size_t size() const { return values_.size() - 2 * kGuard; }
  bool guards_hold() const {
    const auto whole = [](S v) { return v.bits == S(kGuardValue).bits; };
    return std::all_of(values_.begin(), values_.begin() + kGuard, whole) &&
           std::all_of(values_.end() - kGuard, values_.end(), whole);
  }

 private:
  static constexpr std::size_t kGuard = 67;
  static constexpr double kGuardValue = 12345;
  std::vector<S> values_;
};

void run(const Conv2dProblem& problem, Conv2dPass pass, const void* x, const float* w, const void* dy,
         void* result) {
  switch (pass) {
    case Conv2dPass::kForward:
      return kernels::cpu::conv2d_forward(problem, x, w, result);
    case Conv2dPass::kBackwardInput:
      return kernels::cpu::conv2d_backward_input(problem, dy, w, problem.relu_x ? x : nullptr, result);
    case Conv2dPass::kBackwardWeight:
      return kernels::cpu::conv2d_backward_weight(problem, x, dy, static_cast<float*>(result));
  }
}

template <class S>
class HalfImages : public ::testing::Test {
 protected:
  static constexpr DType kDType = std::is_same_v<S, Float16> ? DType::f16 : DType::bf16;

  static ::testing::AssertionResult same(const GuardedFloats& f32, GuardedHalves<S>& got) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const S want(double{f32.data()[i]});
      const auto value = static_cast<double>(got.data()[i]);
      if (std::isnan(value) ? !std::isnan(f32.data()[i]) : got.data()[i].bits != want.bits)
        return ::testing::AssertionFailure()
               << "value " << i << " is " << value << ", in f32 " << f32.data()[i];
    }
    return ::testing::AssertionSuccess();
  }

  /// All passes that have a kernel, with and without the ReLU of x. Returns their number.
  static int expect_rounded_f32(Conv2dProblem problem, Conv2dTensors t) {
    GuardedHalves<S> x(t.x.span()), dy(t.dy.span());
    int passes = 0;
    for (const bool relu_x : {false, true})
      for (const Conv2dPass pass : kConv2dPasses) {
        problem.relu_x = relu_x;
        problem.dtype = DType::f32;
        if (!kernels::cpu::has_conv2d(problem, pass)) continue;
        ++passes;
        GuardedFloats want(t.result_size(pass));
        run(problem, pass, t.x.data(), t.w.data(), t.dy.data(), want.data());
        problem.dtype = kDType;
        if (!kernels::cpu::has_conv2d(problem, pass)) {
          ADD_FAILURE() << "no kernel: " << problem << ", " << name_of(pass);
          continue;
        }
        if (pass == Conv2dPass::kBackwardWeight) {
          GuardedFloats got(t.result_size(pass), std::numeric_limits<float>::quiet_NaN());
          run(problem, pass, x.data(), t.w.data(), dy.data(), got.data());
          EXPECT_TRUE(std::equal(got.span().begin(), got.span().end(), want.span().begin(),
                                 [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }))
              << problem << ", " << name_of(pass) << (relu_x ? ", ReLU" : "");
          EXPECT_TRUE(got.guards_hold()) << problem;
        } else {
          GuardedHalves<S> got(static_cast<std::size_t>(t.result_size(pass)));
          run(problem, pass, x.data(), t.w.data(), dy.data(), got.data());
          EXPECT_TRUE(same(want, got)) << problem << ", " << name_of(pass) << (relu_x ? ", ReLU" : "");
          EXPECT_TRUE(got.guards_hold()) << problem;
        }
      }
    return passes;
  }
  static int expect_rounded_f32(const Conv2dProblem& problem) {
    return expect_rounded_f32(problem, Conv2dTensors(problem, kHalfImagesSeed));
  }
};

class StorageName {
 public:
  template <class S>
  static std::string GetName(int) {
    return std::is_same_v<S, Float16> ? "f16" : "bf16";
  }
};

using HalfTypes = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfImages, HalfTypes, StorageName);

TYPED_TEST(HalfImages, OneByOneWindowsForChannelsAroundTiles) {
  for (const int64_t c_in : {16, 17, 31, 32, 33, 65})
    for (const int64_t c_out : {16, 24, 31, 32, 49})
      EXPECT_GE(this->expect_rounded_f32(conv2d_problem(2, c_in, c_out, 1, {5, 7}, {1, 1})), 4);
}

TYPED_TEST(HalfImages, OneByOneWindowsForAnyNumberOfPixels) {
  for (int64_t width = 1; width <= 25; ++width)
    EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(1, 36, 20, 1, {1, width}, {1, 1})), 6);
}

TYPED_TEST(HalfImages, OneByOneWindowsOfEveryStride) {
  for (const Pair2 stride : {Pair2{1, 2}, {2, 2}, {3, 2}, {20, 20}})
    EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(2, 33, 40, 1, {9, 14}, {1, 1}, stride)), 4);
}

TYPED_TEST(HalfImages, SumsInSeveralPartsAreRoundedOnce) {
  for (const int64_t deep : {255, 256, 257, 512, 770}) {
    EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(1, deep, 40, 1, {3, 5}, {1, 1})), 6);
    EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(1, 40, deep, 1, {3, 5}, {1, 1})), 6);
    EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(4, deep, 24, 1, {12, 12}, {3, 3}, {1, 1}, {1, 1})), 6);
  }
}

TYPED_TEST(HalfImages, OneByOneWindowsInManyTasks) {
  EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(3, 48, 16, 1, {61, 59}, {1, 1})), 6);
  EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(1, 272, 1200, 1, {3, 4}, {1, 1})), 6);
  EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(1, 1200, 272, 1, {3, 4}, {1, 1})), 6);
}

TYPED_TEST(HalfImages, ThreeByThreeWindows) {
  for (const int64_t c_in : {16, 17, 40, 65})
    for (const int64_t c_out : {24, 31, 64})
      for (const int64_t dilation : {1, 2})
        EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(3, c_in, c_out, 1, {15, 14}, {3, 3}, {1, 1},
                                                          {dilation, dilation}, {dilation, dilation})),
                  6);
  EXPECT_EQ(this->expect_rounded_f32(conv2d_problem(4, 120, 72, 3, {13, 12}, {3, 3}, {1, 1}, {1, 1})), 6);
}

TYPED_TEST(HalfImages, WeightGradientsOfEveryGeometry) {
  for (const Pair2 kernel_size : {Pair2{1, 1}, {3, 3}, {2, 5}})
    for (const Pair2 stride : {Pair2{2, 2}, {1, 3}})
      for (const Pair2 padding : {Pair2{0, 0}, {2, 0}, {9, 9}})
        EXPECT_GE(this->expect_rounded_f32(
                      conv2d_problem(2, 45, 19, 1, {9, 14}, kernel_size, stride, padding, {1, 1})),
                  2);
}

TYPED_TEST(HalfImages, ValuesAtTheEndsOfTheRange) {
  const float values[] = {0.0F,
                          -0.0F,
                          0x1p-24F,  // the least f16
                          -0x1p-15F,
                          65504.0F,
                          -65504.0F,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          1.0F / 3};
  for (const auto& problem : {conv2d_problem(2, 40, 40, 1, {6, 7}, {1, 1}),
                              conv2d_problem(4, 40, 40, 1, {12, 14}, {3, 3}, {1, 1}, {1, 1})}) {
    for (std::size_t k = 0; k < std::size(values); ++k) {
      Conv2dTensors t(problem, kHalfImagesSeed);
      for (GuardedFloats* images : {&t.x, &t.dy})
        for (std::size_t i = k; i < images->span().size(); i += 97) images->span()[i] = values[k];
      EXPECT_EQ(this->expect_rounded_f32(problem, t), 6);
    }
    // Sums beyond the range of f16 and below its least number.
    for (const float scale : {3e4F, 1e-7F}) {
      Conv2dTensors t(problem, kHalfImagesSeed);
      for (GuardedFloats* images : {&t.x, &t.dy})
        for (float& v : images->span()) v *= scale;
      EXPECT_EQ(this->expect_rounded_f32(problem, t), 6);
    }
  }
}

TYPED_TEST(HalfImages, HaveTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const auto& c : {conv2d_problem(2, 300, 290, 1, {37, 17}, {1, 1}),
                        conv2d_problem(3, 64, 80, 1, {35, 31}, {3, 3}, {1, 1}, {1, 1})}) {
    Conv2dProblem problem = c;
    problem.dtype = TestFixture::kDType;
    Conv2dTensors t(problem, kHalfImagesSeed);
    GuardedHalves<TypeParam> x(t.x.span()), dy(t.dy.span());
    for (const Conv2dPass pass : kConv2dPasses) {
      const auto bytes = [&](int threads) {
        omp_set_num_threads(threads);
        std::vector<uint32_t> result(static_cast<std::size_t>(t.result_size(pass)));
        run(problem, pass, x.data(), t.w.data(), dy.data(), result.data());
        return result;
      };
      const auto one = bytes(1);
      for (const int threads : {2, 3, 5}) EXPECT_EQ(bytes(threads), one) << problem << ", " << name_of(pass);
    }
  }
  omp_set_num_threads(before);
}

TYPED_TEST(HalfImages, GroupsOf16AreNotNarrow) {
  Conv2dProblem problem = conv2d_problem(4, 32, 32, 2, {12, 13}, {3, 3}, {1, 1}, {1, 1});
  EXPECT_FALSE(kernels::cpu::has_winograd(problem));
  Conv2dTensors t(problem, kHalfImagesSeed);
  GuardedHalves<TypeParam> x(t.x.span()), dy(t.dy.span());
  for (const bool relu_x : {false, true}) {
    problem.relu_x = relu_x;
    problem.dtype = DType::f32;
    GuardedFloats y(t.result_size(Conv2dPass::kForward)), dx(t.result_size(Conv2dPass::kBackwardInput)),
        dw(t.result_size(Conv2dPass::kBackwardWeight)), got_dw(t.result_size(Conv2dPass::kBackwardWeight));
    using namespace kernels::cpu::conv2d;
    winograd_forward(problem, t.x.data(), t.w.data(), y.data());
    winograd_backward_input(problem, t.dy.data(), t.w.data(), t.x.data(), dx.data());
    winograd_backward_weight(problem, t.x.data(), t.dy.data(), dw.data());
    problem.dtype = TestFixture::kDType;
    for (const Conv2dPass pass : kConv2dPasses) EXPECT_TRUE(kernels::cpu::has_conv2d(problem, pass));
    GuardedHalves<TypeParam> got_y(y.span().size()), got_dx(dx.span().size());
    run(problem, Conv2dPass::kForward, x.data(), t.w.data(), dy.data(), got_y.data());
    run(problem, Conv2dPass::kBackwardInput, x.data(), t.w.data(), dy.data(), got_dx.data());
    run(problem, Conv2dPass::kBackwardWeight, x.data(), t.w.data(), dy.data(), got_dw.data());
    EXPECT_TRUE(this->same(y, got_y));
    EXPECT_TRUE(this->same(dx, got_dx));
    EXPECT_TRUE(std::equal(dw.span().begin(), dw.span().end(), got_dw.span().begin()));
  }
}

TYPED_TEST(HalfImages, NarrowGroupsAndSingleChannelsHaveNoKernel) {
  for (const int64_t groups : {8, 32}) {
    Conv2dProblem problem = conv2d_problem(1, 32, 32, groups, {5, 5}, {3, 3}, {1, 1}, {1, 1});
    EXPECT_TRUE(kernels::cpu::has_conv2d(problem, Conv2dPass::kBackwardWeight));
    problem.dtype = TestFixture::kDType;
    for (const Conv2dPass pass : kConv2dPasses) EXPECT_FALSE(kernels::cpu::has_conv2d(problem, pass));
  }
}

TEST(F64Images, HaveNoKernel) {
  for (const int64_t window : {1, 3}) {
    Conv2dProblem problem =
        conv2d_problem(4, 64, 64, 1, {28, 28}, {window, window}, {1, 1}, {window / 2, window / 2});
    problem.dtype = DType::f64;
    for (const Conv2dPass pass : kConv2dPasses) EXPECT_FALSE(kernels::cpu::has_conv2d(problem, pass));
    EXPECT_FALSE(kernels::cpu::has_winograd(problem));
  }
}

}  // namespace
}  // namespace palimpsest::testing
