#include "palimpsest/kernels/cpu/abn/table.h"

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "tests/support/compare.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::Saved;

template <class S>
class AbnTable : public ::testing::Test {
 protected:
  using T = accumulate_t<S>;

  static std::vector<S> draw(Random& random, int64_t size) {
    std::vector<S> values(static_cast<std::size_t>(size));
    for (S& value : values) value = static_cast<S>(random.uniform(-1, 1));
    return values;
  }
  static std::vector<T> draw_arguments(Random& random, int64_t size) {
    std::vector<T> values(static_cast<std::size_t>(size));
    for (T& value : values) value = static_cast<T>(random.uniform(-1, 1));
    return values;
  }
  static std::vector<double> in_double(const std::vector<S>& values) {
    std::vector<double> result;
    for (const S value : values) result.push_back(static_cast<double>(value));
    return result;
  }
};
TYPED_TEST_SUITE(AbnTable, StorageTypes, TypeName);

TYPED_TEST(AbnTable, StreamingStoresWriteTheSame) {
  using S = TypeParam;
  using kernels::cpu::Stores;
  constexpr int64_t kRows = 5, kGuard = 64;
  Random random(5);
  const kernels::cpu::abn::ActivationChoice leaky{Activation::kLeakyReLU, 0.25};
  const auto& set = kernels::cpu::current_instruction_set().abn<S>();
  for (const int64_t width : {1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100}) {
    const auto z = this->draw(random, kRows * width + kGuard),
               dz = this->draw(random, kRows * width + kGuard);
    const auto a = this->draw_arguments(random, width), b = this->draw_arguments(random, width),
               c = this->draw_arguments(random, width), d = this->draw_arguments(random, width),
               e = this->draw_arguments(random, width);
    for (const int64_t start : {0, 1, 5, 15, 16, 31}) {
      for (const auto* sweeps : {&set.plane, &set.strip, &set.columns}) {
        const auto run = [&](Stores stores) {
          // -7 where nothing may be written
          std::vector<S> out(2 * z.size(), S(-7)), applied(2 * z.size(), S(-7));
          sweeps->backward({kRows, width, width, 1}, leaky, Saved::kOutput, false,
                           {a.data(), a.data(), a.data(), b.data(), c.data(), d.data()},
                           {z.data(), {nullptr, false}, dz.data()}, {out.data() + start, nullptr, nullptr},
                           stores);
          sweeps->apply({kRows, width, width, 1}, leaky, Saved::kOutput,
                        {a.data(), b.data(), c.data(), d.data(), e.data()},
                        {z.data(), {nullptr, false}, applied.data() + start, nullptr}, stores);
          out.insert(out.end(), applied.begin(), applied.end());
          return this->in_double(out);
        };
        const std::vector<double> written = run(Stores::kStreaming);
        EXPECT_EQ(written, run(Stores::kCached)) << "width " << width << ", start " << start;
        EXPECT_EQ(written[static_cast<std::size_t>(start + kRows * width)], -7)
            << "one past the end, width " << width << ", start " << start;
        if (start > 0) {
          EXPECT_EQ(written[static_cast<std::size_t>(start - 1)], -7) << "one before the start";
        }
      }
    }
  }
}

// A sweep works on whole vectors and, at the ends of rows, on single ones: both must treat a NaN, infinities and zeros
// alike, wherever they lie.
TYPED_TEST(AbnTable, AReLUKeepsNaNAndMakesZeroOfAllThatIsNotAboveIt) {
  using S = TypeParam;
  using T = accumulate_t<S>;
  constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                   kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kValues[] = {kNaN, -kInfinity, kInfinity, -0.0, 0.0, -1, 1, -kNaN};
  const T zero = 0, one = 1, unchanged = T(-0.0);
  for (const Activation kind : {Activation::kReLU, Activation::kLeakyReLU}) {
    for (const int64_t width : {1, 8, 16, 17, 40, 64, 75}) {
      std::vector<S> x(static_cast<std::size_t>(width)), z(x.size());
      for (std::size_t shift = 0; shift < std::size(kValues); ++shift) {
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = static_cast<S>(kValues[(i * 3 + shift) % std::size(kValues)]);
        kernels::cpu::current_instruction_set().abn<S>().plane.apply(
            {1, 0, width}, {kind, 0.5}, Saved::kOutput, {&zero, &one, &unchanged, &one, &zero},
            {x.data(), {nullptr, false}, z.data(), nullptr}, kernels::cpu::Stores::kCached);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double from = static_cast<double>(x[i]), got = static_cast<double>(z[i]);
          const double want = from > 0 || std::isnan(from) ? from
                              : kind == Activation::kReLU  ? 0
                                                           : from * 0.5;
          if (std::isnan(want))
            EXPECT_TRUE(std::isnan(got))
                << from << " became " << got << ", width " << width << ", value " << i;
          else
            EXPECT_TRUE(got == want && std::signbit(got) == std::signbit(want))
                << from << " became " << got << ", width " << width << ", value " << i;
        }
      }
    }
  }
}

// ELU's forward and inverse are the exponential and the logarithm of the vector kernels themselves.
template <class T>
class EluAccuracy : public ::testing::Test {
 protected:
  static double ulp(double value) {
    return unit_in_last_place(dtype_of<T>(), static_cast<double>(static_cast<T>(value)));
  }

  static constexpr kernels::cpu::abn::ActivationChoice kElu{Activation::kELU, 1};
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
  const auto& sweeps = kernels::cpu::current_instruction_set().abn<T>().plane;
  sweeps.apply({1, 0, this->kCount}, this->kElu, Saved::kOutput, {&zero, &one, &zero, &one, &zero},
               {y.data(), {nullptr, false}, z.data(), nullptr}, kernels::cpu::Stores::kCached);
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
  const auto& sweeps = kernels::cpu::current_instruction_set().abn<T>().plane;
  sweeps.backward({1, 0, this->kCount}, this->kElu, Saved::kOutput, false,
                  {&zero, &zero, &zero, &zero, &one, &zero}, {z.data(), {nullptr, false}, dz.data()},
                  {y.data(), nullptr, nullptr}, kernels::cpu::Stores::kCached);
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
