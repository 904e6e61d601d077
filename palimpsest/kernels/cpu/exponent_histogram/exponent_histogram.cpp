// Compiled once for all instruction sets: counting one value after another takes the same time in each.
#include "palimpsest/kernels/exponent_histogram.h"

#include "palimpsest/base/parallel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace palimpsest::kernels::cpu {
namespace {

constexpr int64_t kCountedAtOnce = 1 << 18;

/// A binary floating-point format: sign, then exponent, then mantissa.
template <class Word, int kMantissaBits, int kBias>
struct Format {
  using Bits = Word;
  static constexpr uint32_t kMagnitude = static_cast<Word>(~Word{0}) >> 1;
  static constexpr uint32_t kExponents = (kMagnitude >> kMantissaBits) + 1;
  static constexpr uint32_t kInfinity = (kExponents - 1) << kMantissaBits;

  /// Returns the magnitude of value i; `x` may lie at any address.
  static uint32_t magnitude(const char* x, int64_t i) {
    Word word;
    std::memcpy(&word, x + i * static_cast<int64_t>(sizeof word), sizeof word);
    return word & kMagnitude;
  }
  static uint32_t exponent(uint32_t magnitude) { return magnitude >> kMantissaBits; }
  static int bin(uint32_t exponent) { return bin_of_exponent(static_cast<int>(exponent) - kBias); }
  /// Returns the bin of a subnormal number, which is a multiple of the smallest one.
  static int subnormal_bin(uint32_t mantissa) {
    constexpr int kLeast = 1 - kBias - kMantissaBits;
    return bin_of_exponent(kLeast + static_cast<int>(std::bit_width(mantissa)) - 1);
  }
};
using F32 = Format<uint32_t, 23, 127>;
using F16 = Format<uint16_t, 10, 15>;
using BF16 = Format<uint16_t, 7, 127>;

/// Values per round: they stay in the second-level cache for the further passes of the round.
constexpr int64_t kCachedValues = 16384;

/// Returns the number of values of this magnitude among `n` values at `x`.
template <class F>
int64_t count_equal(const char* x, int64_t n, uint32_t magnitude) {
  int64_t result = 0;
  for (int64_t i = 0; i < n; ++i) result += F::magnitude(x, i) == magnitude;
  return result;
}

// One addition per value and no branch. Only rounds with exponent 0 (or the highest) run a further,
// vectorized loop, which tells zeros from subnormal numbers (infinities from NaNs).
template <class F>
void count(const void* x, int64_t begin, int64_t end, ExponentHistogram& counts) {
  // Several tables: neighbours often have the same exponent, and an addition to the same place waits for the
  // previous one.
  constexpr std::size_t kTables = 4;
  constexpr std::size_t kSpecial = F::kExponents - 1;
  for (; begin < end; begin += kCachedValues) {
    const int64_t n = std::min(kCachedValues, end - begin);
    const char* const bytes =
        static_cast<const char*>(x) + begin * static_cast<int64_t>(sizeof(typename F::Bits));
    std::array<std::array<uint32_t, F::kExponents>, kTables> tables{};
    int64_t i = 0;
    for (; i + static_cast<int64_t>(kTables) <= n; i += static_cast<int64_t>(kTables))
      for (std::size_t t = 0; t < kTables; ++t)
        ++tables[t][F::exponent(F::magnitude(bytes, i + static_cast<int64_t>(t)))];
    for (; i < n; ++i) ++tables[0][F::exponent(F::magnitude(bytes, i))];
    for (std::size_t t = 1; t < kTables; ++t)
      for (std::size_t e = 0; e <= kSpecial; ++e) tables[0][e] += tables[t][e];
    for (uint32_t e = 1; e < kSpecial; ++e) counts[static_cast<std::size_t>(F::bin(e))] += tables[0][e];
    if (const int64_t all = tables[0][0]; all > 0) {
      const int64_t zeros = count_equal<F>(bytes, n, 0);
      counts[kZeroBin] += zeros;
      for (i = 0; zeros < all && i < n; ++i)
        if (const uint32_t m = F::magnitude(bytes, i); m != 0 && F::exponent(m) == 0)
          ++counts[static_cast<std::size_t>(F::subnormal_bin(m))];
    }
    if (const int64_t all = tables[0][kSpecial]; all > 0) {
      const int64_t infinities = count_equal<F>(bytes, n, F::kInfinity);
      counts[static_cast<std::size_t>(kInfinityBin)] += infinities;
      counts[static_cast<std::size_t>(kNaNBin)] += all - infinities;
    }
  }
}

}  // namespace

void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentHistogram& counts) {
  if (dtype == DType::f64) throw std::invalid_argument("exponents are counted of f32, f16 and bf16, got f64");
  const auto task = dtype == DType::f32 ? &count<F32> : dtype == DType::f16 ? &count<F16> : &count<BF16>;
  std::vector<ExponentHistogram> partial(static_cast<std::size_t>((n + kCountedAtOnce - 1) / kCountedAtOnce));
  parallel_tasks(static_cast<int64_t>(partial.size()), [&](int64_t i) {
    task(x, i * kCountedAtOnce, std::min(n, (i + 1) * kCountedAtOnce), partial[static_cast<std::size_t>(i)]);
  });
  for (const auto& part : partial)
    for (std::size_t bin = 0; bin < counts.size(); ++bin) counts[bin] += part[bin];
}

}  // namespace palimpsest::kernels::cpu
