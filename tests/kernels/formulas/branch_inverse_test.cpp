// y from z and one bit: as exact as z allows, everywhere on both branches, in every lane.
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/base/random.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "tests/support/grid.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::Branches;

// z, act'(y), and the largest error of y that rounding z to T can cause.
template <class T>
struct Truth {
  double z, derivative, doubt;
};

template <class T>
Truth<T> truth(Activation kind, double y) {
  constexpr double kEpsilon = kActivationUlp * std::numeric_limits<T>::epsilon();
  Truth<T> result{};
  kernels::dispatch_activation<double>(kind, {0, {0x1p-52, 0x1p-1022}}, [&]<class Act>(const Act& act) {
    if constexpr (kernels::InvertibleByBranch<Act>) {
      const double z = act.forward(y), slope = act.derivative_at(y), ulp = kEpsilon * std::abs(z);
      const double flat = std::sqrt(2 * ulp / Branches<Act>::kCurvature);
      result = {z, slope, std::min(flat, ulp / std::abs(slope))};
    }
  });
  return result;
}

// y, or act'(y), from z and its branch by the vector kernels.
template <class T>
std::vector<T> recovered(Activation kind, const std::vector<T>& z, const std::vector<uint8_t>& bits,
                         bool derivative) {
  const auto size = static_cast<int64_t>(z.size());
  std::vector<T> out(z.size());
  const std::vector<T> dz(z.size(), derivative ? 1 : 0);
  const T zero = 0, one = 1;
  const T &per_dy = derivative ? one : zero, &per_t = derivative ? zero : one;
  kernels::cpu::current_instruction_set().abn<T>().plane.backward(
      {1, 0, size}, {kind, 0}, kernels::Saved::kOutputBit, /*frozen=*/derivative,
      {.center = &zero,
       .scale = &zero,
       .shift = &zero,
       .per_dy = &per_dy,
       .per_t = &per_t,
       .constant = &zero},
      {z.data(), {nullptr, false}, dz.data(), {bits.data(), 0}},
      {.dx = out.data(), .dresidual = nullptr, .z = nullptr}, kernels::cpu::Stores::kCached);
  return out;
}

std::vector<uint8_t> bits_for(int64_t size) {
  return std::vector<uint8_t>(static_cast<std::size_t>(kernels::branch_bytes(size)));
}

template <class T>
class BranchInverse : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(BranchInverse, Types);

TYPED_TEST(BranchInverse, FindsYAndTheSlopeThereAsWellAsZTells) {
  using T = TypeParam;
  constexpr int64_t kCount = 60007;  // whole vectors, and some more values
  constexpr double kEpsilon = std::numeric_limits<T>::epsilon();
  for (const Activation kind : branched_activations()) {
    const double minimum = kernels::minimum_at<double>(kind);
    // Around the minimum, around 0, far up, and down to where z underflows.
    for (const auto& [low, high] : {std::pair{minimum - 1e-2, minimum + 1e-2},
                                    {-3.0, 3.0},
                                    {-1e-6, 1e-6},
                                    {2.0, 50.0},
                                    {-8.0, -2.0},
                                    {-37.0, -8.0},
                                    {-90.0, -37.0}}) {
      SCOPED_TRACE(::testing::Message()
                   << kernels::kActivations.name(kind) << " in " << low << " to " << high);
      Random random(11);
      std::vector<T> z(kCount);
      std::vector<double> y(kCount);
      std::vector<uint8_t> bits = bits_for(kCount);
      for (std::size_t i = 0; i < z.size(); ++i) {
        y[i] = random.uniform(low, high);
        z[i] = static_cast<T>(truth<T>(kind, y[i]).z);
        if (y[i] > minimum) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1 << i % 8);
      }
      const std::vector<T> found = recovered(kind, z, bits, false), slope = recovered(kind, z, bits, true);
      double worst = 0, worst_slope = 0, at = 0;
      for (std::size_t i = 0; i < z.size(); ++i) {
        const Truth<T> want = truth<T>(kind, y[i]);
        if (std::abs(want.z) < std::numeric_limits<T>::min()) continue;  // underflow loses the value
        const double allowed = want.doubt + kBranchInverseUlp * kEpsilon * (1 + std::abs(y[i]));
        const double share = std::abs(static_cast<double>(found[i]) - y[i]) / allowed;
        if (!(share <= worst)) worst = share, at = y[i];
        const double slope_share = std::abs(static_cast<double>(slope[i]) - want.derivative) / allowed;
        if (!(slope_share <= worst_slope)) worst_slope = slope_share;
      }
      EXPECT_LE(worst, 1) << "y of " << at;
      EXPECT_LE(worst_slope, 1) << "slope";
    }
  }
}

TYPED_TEST(BranchInverse, EveryValueOfZGivesANumberAndNotANumberStays) {
  using T = TypeParam;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  for (const Activation kind : branched_activations()) {
    SCOPED_TRACE(kernels::kActivations.name(kind));
    const double minimum = kernels::minimum_at<double>(kind);
    const T least = static_cast<T>(truth<T>(kind, minimum).z);
    const std::vector<T> values{0,
                                static_cast<T>(-0.0),
                                std::numeric_limits<T>::denorm_min(),
                                -std::numeric_limits<T>::denorm_min(),
                                -std::numeric_limits<T>::min(),
                                least,
                                std::nextafter(least, T(-1)),
                                std::nextafter(least, T(0)),
                                static_cast<T>(least * 1.01),
                                -1,
                                std::numeric_limits<T>::max(),
                                kInfinity,
                                std::numeric_limits<T>::quiet_NaN()};
    for (const bool rising : {false, true}) {
      for (std::size_t lane = 0; lane < 16; ++lane) {  // the others hold an ordinary value
        for (const T value : values) {
          std::vector<T> z(32, T(-0.1));
          z[lane] = value;
          std::vector<uint8_t> bits = bits_for(32);
          if (rising) std::fill(bits.begin(), bits.end(), uint8_t{0xff});
          const T y = recovered(kind, z, bits, false)[lane], slope = recovered(kind, z, bits, true)[lane];
          EXPECT_EQ(std::isnan(y), std::isnan(value)) << value << ", rising " << rising;
          EXPECT_EQ(std::isnan(slope), std::isnan(value)) << value << ", rising " << rising;
          if (rising && value > 100) {
            EXPECT_EQ(y, value);
            EXPECT_EQ(slope, 1);
          }
          if (!rising && !std::isnan(value)) {
            EXPECT_TRUE(std::isfinite(y)) << value;
          }
          if (value <= least) {
            EXPECT_NEAR(y, minimum, truth<T>(kind, minimum).doubt);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::testing
