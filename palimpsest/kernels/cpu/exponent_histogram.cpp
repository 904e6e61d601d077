// One source for all instruction sets: what takes the time is counting, one value after another, in each.
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
  static constexpr uint32_t kMantissa = (uint32_t{1} << kMantissaBits) - 1;
  static constexpr uint32_t kExponents = (kMagnitude >> kMantissaBits) + 1;

  static uint32_t exponent(uint32_t magnitude) { return magnitude >> kMantissaBits; }
  static int bin(uint32_t exponent) { return bin_of_exponent(static_cast<int>(exponent) - kBias); }
  /// Of a subnormal number: its mantissa counts multiples of the least one.
  static int subnormal_bin(uint32_t mantissa) {
    constexpr int kLeast = 1 - kBias - kMantissaBits;
    return mantissa == 0 ? kZeroBin
                         : bin_of_exponent(kLeast + static_cast<int>(std::bit_width(mantissa)) - 1);
  }
};
using F32 = Format<uint32_t, 23, 127>;
using F16 = Format<uint16_t, 10, 15>;
using BF16 = Format<uint16_t, 7, 127>;

template <class F>
void count(const void* x, int64_t begin, int64_t end, ExponentCounts& counts) {
  // Several tables: neighbours have the same exponent more often than not, and adding to one place in turn
  // waits for the last addition.
  constexpr std::size_t kTables = 4;
  std::array<std::array<uint32_t, F::kExponents>, kTables> tables{};
  const char* bytes = static_cast<const char*>(x);
  for (int64_t i = begin; i < end; ++i) {
    typename F::Bits word;
    std::memcpy(&word, bytes + i * static_cast<int64_t>(sizeof word), sizeof word);
    const uint32_t magnitude = word & F::kMagnitude, exponent = F::exponent(magnitude);
    if (exponent == 0) {
      ++counts[static_cast<std::size_t>(F::subnormal_bin(magnitude))];
    } else if (exponent == F::kExponents - 1) {
      ++counts[static_cast<std::size_t>((magnitude & F::kMantissa) != 0 ? kNaNBin : kInfinityBin)];
    } else {
      ++tables[static_cast<std::size_t>(i) % kTables][exponent];
    }
  }
  for (uint32_t e = 1; e + 1 < F::kExponents; ++e)
    for (const auto& table : tables) counts[static_cast<std::size_t>(F::bin(e))] += table[e];
}

}  // namespace

void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentCounts& counts) {
  if (dtype == DType::f64) throw std::invalid_argument("exponents are counted of f32, f16 and bf16, got f64");
  const auto task = dtype == DType::f32 ? &count<F32> : dtype == DType::f16 ? &count<F16> : &count<BF16>;
  std::vector<ExponentCounts> partial(static_cast<std::size_t>((n + kCountedAtOnce - 1) / kCountedAtOnce));
  parallel_tasks(static_cast<int64_t>(partial.size()), [&](int64_t i) {
    task(x, i * kCountedAtOnce, std::min(n, (i + 1) * kCountedAtOnce), partial[static_cast<std::size_t>(i)]);
  });
  for (const auto& part : partial)
    for (std::size_t bin = 0; bin < counts.size(); ++bin) counts[bin] += part[bin];
}

}  // namespace palimpsest::kernels::cpu
