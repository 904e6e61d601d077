#include "palimpsest/kernels/cpu/instruction_set.h"

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/abn.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::cpu::compiled_instruction_sets;
using kernels::cpu::find_instruction_set;
using kernels::cpu::InstructionSet;

TEST(InstructionSet, AnUnknownNameIsAnErrorThatListsWhatRunsHere) {
  try {
    find_instruction_set("x86-64-v9");
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("'x86-64-v9'"), std::string::npos) << message;
    for (const InstructionSet& set : compiled_instruction_sets())
      EXPECT_EQ(message.find(set.name) != std::string::npos, set.runs_here())
          << set.name << " in: " << message;
  }
}

TEST(InstructionSet, ASetThatThisProcessorLacksIsAnError) {
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (set.runs_here())
      EXPECT_EQ(find_instruction_set(set.name).name, std::string(set.name));
    else
      EXPECT_THROW(find_instruction_set(set.name), std::invalid_argument);
  }
}

TEST(InstructionSet, WithoutANameTheBestOneThatRunsHereIsTaken) {
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (!set.runs_here()) continue;
    EXPECT_STREQ(find_instruction_set(nullptr).name, set.name);
    EXPECT_STREQ(find_instruction_set("").name, set.name);
    break;
  }
}

TEST(InstructionSet, TheEnvironmentDecidesWhichOneIsInUse) {
  EXPECT_STREQ(kernels::cpu::instruction_set(), find_instruction_set(std::getenv("PALIMPSEST_ISA")).name);
}

// ELU's forward and inverse are the exponential and the logarithm of the vector kernels themselves.
template <class T>
class EluAccuracy : public ::testing::Test {
 protected:
  static double ulp(double value) {
    const T t = static_cast<T>(std::abs(value));
    return static_cast<double>(std::nextafter(t, std::numeric_limits<T>::infinity()) - t);
  }

  static constexpr kernels::cpu::ActivationChoice kElu{Activation::kELU, 1};
  static constexpr int64_t kCount = 200000;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EluAccuracy, Types);

TYPED_TEST(EluAccuracy, ExponentialIsWithinTwoUlp) {
  using T = TypeParam;
  std::vector<T> y(this->kCount), z(this->kCount);
  Random random(3);
  for (std::size_t i = 0; i < y.size(); ++i)  // every magnitude, up to saturation
    y[i] = static_cast<T>(-std::exp(random.uniform(std::log(1e-12), std::log(50.0))));
  const T zero = 0, one = 1;
  const auto& sweeps = kernels::cpu::current_instruction_set().kernels<T>().plane;
  sweeps.apply({1, 0, this->kCount}, this->kElu, {&zero, &one, &zero, &one, &zero}, y.data(), z.data(),
               nullptr);
  double worst = 0, worst_at = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double want = std::expm1(static_cast<double>(y[i]));
    const double error = std::abs(static_cast<double>(z[i]) - want) / this->ulp(want);
    if (!(error <= worst)) worst = error, worst_at = static_cast<double>(y[i]);
  }
  EXPECT_LE(worst, kExponentialUlp) << "at " << worst_at;
}

TYPED_TEST(EluAccuracy, LogarithmIsWithinTwoUlp) {
  using T = TypeParam;
  std::vector<T> z(this->kCount), dz(this->kCount, 0), y(this->kCount);
  Random random(4);
  for (std::size_t i = 0; i < z.size(); ++i)  // close to 0, close to -1, and between
    z[i] = i % 2 ? static_cast<T>(-std::exp(random.uniform(std::log(1e-12), 0.0)))
                 : static_cast<T>(-1 + std::exp(random.uniform(std::log(1e-6), 0.0)));
  const T zero = 0, one = 1;
  const auto& sweeps = kernels::cpu::current_instruction_set().kernels<T>().plane;
  sweeps.backward({1, 0, this->kCount}, this->kElu, {&zero, &zero, &one, &zero}, z.data(), nullptr, dz.data(),
                  y.data());
  double worst = 0, worst_at = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (z[i] <= -1 || z[i] >= 0) continue;
    const double want = std::log1p(static_cast<double>(z[i]));
    const double error = std::abs(static_cast<double>(y[i]) - want) / this->ulp(want);
    if (!(error <= worst)) worst = error, worst_at = static_cast<double>(z[i]);
  }
  EXPECT_LE(worst, kExponentialUlp) << "at " << worst_at;
}

}  // namespace
}  // namespace palimpsest::testing
