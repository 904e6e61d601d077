// The conversions of kernels/cpu/simd/storage.h, in every form of their calls and by the instruction set in use, against
// those of base/half.h: one value at a time, in f64.
#include "palimpsest/base/half.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "tests/kernels/cpu/simd/storage_functions.h"

#include "compiled_sets.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

namespace palimpsest::kernels::cpu {
#define PALIMPSEST_DECLARE_FORMS(isa, bf16, name, level, feature) \
  namespace bf16::storage_test {                                  \
  extern const testing::StorageForms kForms;                      \
  }
PALIMPSEST_FOR_EACH_SET(PALIMPSEST_DECLARE_FORMS)
}  // namespace palimpsest::kernels::cpu

namespace palimpsest::testing {
namespace {

constexpr int64_t kPatterns = 65536;

const StorageForms& forms_in_use() {
  const std::string_view current = kernels::cpu::current_instruction_set().name;
#define PALIMPSEST_FORMS_OF_SET(isa, bf16, name, level, feature) \
  if (current == name) return kernels::cpu::bf16::storage_test::kForms;
  PALIMPSEST_FOR_EACH_SET(PALIMPSEST_FORMS_OF_SET)
  throw std::logic_error("no such set: " + std::string(current));
}

/// Values on the boundary of every register.
template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t count) : values_(new(std::align_val_t{64}) T[static_cast<std::size_t>(count)]()) {}
  ~Aligned() { ::operator delete[](values_, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  operator T*() { return values_; }
  T& operator[](int64_t i) { return values_[i]; }

 private:
  T* values_;
};

double widened(bool is_f16, uint16_t bits) {
  Float16 half;
  BFloat16 brain;
  half.bits = brain.bits = bits;
  return is_f16 ? static_cast<double>(half) : static_cast<double>(brain);
}

uint16_t narrowed(bool is_f16, float value) {
  return is_f16 ? Float16(static_cast<double>(value)).bits : BFloat16(static_cast<double>(value)).bits;
}

bool is_nan(bool is_f16, uint16_t bits) {
  return (bits & 0x7fff) > (is_f16 ? 0x7c00 : 0x7f80);
}

/// Checks the conversions of `form` from f32 of every value.
void expect_rounded(const StorageFunctions& form, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size() + 63) / 64 * 64;
  Aligned<float> from(count), stored(count);
  Aligned<uint16_t> to(count);
  std::copy(values.begin(), values.end(), static_cast<float*>(from));
  form.narrow(count, from, to);
  form.as_stored(count, from, stored);
  int wrong = 0;
  for (int64_t i = 0; i < count && wrong < 5; ++i) {
    const uint16_t want = narrowed(form.is_f16, from[i]);
    const bool right =
        std::isnan(from[i])
            ? is_nan(form.is_f16, to[i]) && std::isnan(stored[i])
            : to[i] == want && std::bit_cast<uint32_t>(stored[i]) ==
                                   std::bit_cast<uint32_t>(static_cast<float>(widened(form.is_f16, want)));
    if (right) continue;
    ++wrong;
    ADD_FAILURE() << form.name << ": " << std::hexfloat << from[i] << " (" << std::hex
                  << std::bit_cast<uint32_t>(from[i]) << "), number " << std::dec << i << ", became "
                  << std::hex << to[i] << " and " << std::bit_cast<uint32_t>(stored[i]) << ", want " << want;
  }
}

TEST(Storage, WidensEveryPattern) {
  for (const StorageFunctions& form : forms_in_use().forms) {
    Aligned<uint16_t> from(kPatterns);
    Aligned<float> to(kPatterns);
    for (int64_t i = 0; i < kPatterns; ++i) from[i] = static_cast<uint16_t>(i);
    form.widen(kPatterns, from, to);
    for (int64_t i = 0; i < kPatterns; ++i) {
      const auto want = static_cast<float>(widened(form.is_f16, from[i]));
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(to[i])) << form.name << ": " << std::hex << i;
      else
        EXPECT_EQ(std::bit_cast<uint32_t>(to[i]), std::bit_cast<uint32_t>(want))
            << form.name << ": " << std::hex << i;
    }
  }
}

TEST(Storage, RoundsEveryPatternAndWhatLiesAroundEveryTie) {
  for (const StorageFunctions& form : forms_in_use().forms) {
    std::vector<float> values;
    for (int64_t i = 0; i < kPatterns; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      if (is_nan(form.is_f16, bits)) continue;
      const double value = widened(form.is_f16, bits);
      // The next pattern away from 0; beyond the largest number that of twice the largest power of two.
      double next = widened(form.is_f16, static_cast<uint16_t>(bits + 1));
      if (std::isinf(value)) next = value;
      if (std::isinf(next)) next = std::copysign(form.is_f16 ? 0x1p16 : 0x1p128, value);
      const auto tie = static_cast<float>(std::isinf(value) ? value : (value + next) / 2);
      const auto exact = static_cast<float>(value);
      values.insert(values.end(), {exact, std::nextafter(exact, 0.0f), std::nextafter(exact, INFINITY),
                                   std::nextafter(exact, -INFINITY), tie, std::nextafter(tie, INFINITY),
                                   std::nextafter(tie, -INFINITY)});
    }
    expect_rounded(form, values);
  }
}

TEST(Storage, KeepsNaNAndTheNumbersBesideIt) {
  // Quiet and signaling ones, with bits that rounding would carry into the sign, and with no bit in the upper half.
  for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7fff0000u, 0xffff0000u, 0x7f810000u, 0x7fffffffu,
                             0xffffffffu, 0x7f800001u, 0xff800001u, 0x7fff8000u, 0x7f80ffffu, 0x7fbfffffu}) {
    for (const StorageFunctions& form : forms_in_use().forms) {
      // Steps keep a NaN whose lower half is 0 (round_in_turn).
      if (form.is_step && !form.is_f16 && (nan & 0xffff) != 0) continue;
      for (std::size_t place = 0; place < 64; ++place) {
        std::vector<float> values(192);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) * 0x1.8p-11f;
        values[64 + place] = std::bit_cast<float>(nan);
        expect_rounded(form, values);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::testing
