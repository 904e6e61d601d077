#include "palimpsest/kernels/exponent_histogram.h"

#include "palimpsest/base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace palimpsest::kernels {
namespace {

TEST(ExponentHistogram, CountsEverySixteenBitNumberAsTheReferenceDoes) {
  std::vector<uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    ExponentHistogram got{}, want{};
    cpu::exponent_histogram(dtype, all.data(), 65536, got);
    reference::exponent_histogram(dtype, all.data(), 65536, want);
    EXPECT_EQ(got, want);
    EXPECT_EQ(got[kZeroBin], 2);
    EXPECT_EQ(got[kInfinityBin], 2);
    EXPECT_EQ(got[kNaNBin], dtype == DType::f16 ? 2 * 1023 : 2 * 127);
  }
}

TEST(ExponentHistogram, CountsF32AsTheReferenceDoesForAnyLengthAndStart) {
  Random random(7);
  std::vector<float> values(600001);
  for (float& v : values) {
    const uint32_t bits = static_cast<uint32_t>(random.uniform(0, 4294967296.0));
    std::memcpy(&v, &bits, sizeof v);
  }
  const float special[] = {0.0f,
                           -0.0f,
                           1.0f,
                           -1.0f,
                           1.9999999f,
                           65504.0f,
                           0x1p-24f,
                           0x1p-149f,
                           0x1.8p-130f,
                           std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::infinity(),
                           NAN};
  std::copy(std::begin(special), std::end(special), values.begin());
  for (const int64_t n : {0, 1, 3, 12, 1000, 600000})
    for (const int64_t start : {0, 1}) {
      // Counts are added to the counts that are there.
      ExponentHistogram got{}, want{};
      got[kZeroBin] = want[kZeroBin] = 5;
      cpu::exponent_histogram(DType::f32, values.data() + start, n, got);
      reference::exponent_histogram(DType::f32, values.data() + start, n, want);
      EXPECT_EQ(got, want) << n << " from " << start;
    }
}

TEST(ExponentHistogram, ABinHoldsOnePowerOfTwo) {
  const auto bin_of = [](float value) {
    ExponentHistogram counts{};
    cpu::exponent_histogram(DType::f32, &value, 1, counts);
    for (int bin = 0; bin < kExponentBins; ++bin)
      if (counts[static_cast<std::size_t>(bin)] == 1) return bin;
    return -1;
  };
  for (int e = kLowestExponent; e <= kHighestExponent; ++e) {
    EXPECT_EQ(bin_of(std::ldexp(1.0f, e)), bin_of_exponent(e));
    EXPECT_EQ(bin_of(-std::nextafter(std::ldexp(1.0f, e), 0.0f)),
              e == kLowestExponent ? kZeroBin : bin_of_exponent(e - 1));
  }
}

TEST(ExponentHistogram, RefusesF64) {
  ExponentHistogram counts{};
  const double value = 1;
  EXPECT_THROW(cpu::exponent_histogram(DType::f64, &value, 1, counts), std::invalid_argument);
  EXPECT_THROW(reference::exponent_histogram(DType::f64, &value, 1, counts), std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::kernels
