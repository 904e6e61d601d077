#include "palimpsest/kernels/cpu/upsampled_loss/selection.h"

#include "palimpsest/kernels/formulas/upsampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace palimpsest::kernels::cpu::upsampled_loss {
namespace {

/// NaN is harder than any number, so that a diverged loss shows.
double rank_of(double loss) {
  return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
}

/// Returns -log p[t] of pixel `at` of image n in f64, ranked.
template <class T>
double exact_loss(const UpsampledProblem& p, const T* x, int64_t n, int64_t at, int64_t t,
                  std::vector<double>& z) {
  const Source v = source_of(at / p.out.w, p.in.h, p.out.h, p.align_corners),
               u = source_of(at % p.out.w, p.in.w, p.out.w, p.align_corners);
  // With a weight of 0 there is no other row (column): what lies there might be NaN.
  const int64_t bottom = v.weight == 0 ? v.first : v.first + 1, right = u.weight == 0 ? u.first : u.first + 1;
  z.resize(static_cast<std::size_t>(p.c));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < p.c; ++c) {
    const auto value = [&](int64_t h, int64_t w) { return static_cast<double>(x[map_index(p, n, c, h, w)]); };
    const auto blend = [](double a, double b, double weight) {
      return weight == 0 ? a : (1 - weight) * a + weight * b;
    };
    const double top = blend(value(v.first, u.first), value(v.first, right), u.weight);
    const double low = blend(value(bottom, u.first), value(bottom, right), u.weight);
    const double logit = blend(top, low, v.weight);
    z[static_cast<std::size_t>(c)] = logit;
    largest = std::max(largest, logit);
  }
  double sum = 0;
  for (const double logit : z) sum += std::exp(logit - largest);
  return rank_of(std::log(sum) + largest - z[static_cast<std::size_t>(t)]);
}

/// Returns which of kBins the loss falls into: a larger loss falls into the same bin or a later one.
constexpr std::size_t kBins = 4096;
std::size_t bin_of(double rank) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(rank));
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000U;
  return ordered >> 20;
}

/// Returns the rank, from the hardest, of `place`, in [1, the number of selected pixels].
template <class T>
double rank_at(const T* losses, const uint8_t* selected, int64_t pixels,
               const std::array<int64_t, kBins>& counts, int64_t place) {
  std::size_t bin = kBins - 1;
  for (; place > counts[bin]; --bin) place -= counts[bin];
  std::vector<T> ranked;
  ranked.reserve(static_cast<std::size_t>(counts[bin]));
  for (int64_t i = 0; i < pixels; ++i)
    if (const double rank = rank_of(static_cast<double>(losses[i])); selected[i] && bin_of(rank) == bin)
      ranked.push_back(static_cast<T>(rank));
  std::nth_element(ranked.begin(), ranked.begin() + (place - 1), ranked.end(), std::greater<>());
  return static_cast<double>(ranked[static_cast<std::size_t>(place - 1)]);
}

template <class T>
double largest_finite_logit(const UpsampledProblem& p, const T* x, int64_t n) {
  const int64_t each = p.c * p.in.h * p.in.w;
  double largest = 0;
  for (int64_t i = n * each; i < (n + 1) * each; ++i)
    if (std::isfinite(x[i])) largest = std::max(largest, std::abs(static_cast<double>(x[i])));
  return largest;
}

}  // namespace

template <class T>
void select_hardest(const UpsampledProblem& problem, const T* x, const CrossEntropyTargets& targets,
                    const CrossEntropyRules& rules, int64_t n, const T* losses, uint8_t* selected) {
  const int64_t pixels = problem.out.h * problem.out.w;
  std::array<int64_t, kBins> counts{};
  int64_t count = 0;
  for (int64_t i = 0; i < pixels; ++i)
    if (selected[i]) {
      ++count;
      ++counts[bin_of(rank_of(static_cast<double>(losses[i])))];
    }
  if (count == 0) return;
  const auto most = static_cast<std::size_t>(std::ceil(rules.share * static_cast<double>(count)));
  const auto place = std::min(static_cast<int64_t>(most), count);
  const double threshold = rank_at(losses, selected, pixels, counts, place);
  // The error of a loss in f32: some ulp of the largest logit and of log C, and of the sum over C classes. f64 is
  // taken as it is, and so is infinity.
  const auto classes = static_cast<double>(problem.c);
  const bool exact = sizeof(T) == sizeof(double) || !std::isfinite(threshold);
  const double error =
      exact ? 0 : 1e-6 * (1 + largest_finite_logit(problem, x, n) + std::log(classes)) + 1e-8 * classes;

  struct Pixel {
    double loss;
    int64_t at;
  };
  std::vector<Pixel> near;
  std::vector<double> z;
  std::size_t harder = 0;
  const double easy = -std::log(rules.probability);
  for (int64_t i = 0; i < pixels; ++i) {
    if (!selected[i]) continue;
    const double loss = rank_of(static_cast<double>(losses[i]));
    if (loss > threshold + error) {
      ++harder;
      if (rules.probability < 1 && loss - error <= easy)
        selected[i] = exact_loss(problem, x, n, i, target_at(targets, n * pixels + i), z) > easy;
    } else {
      selected[i] = 0;
      if (loss >= threshold - error)
        near.push_back({error > 0 && std::isfinite(loss)
                            ? exact_loss(problem, x, n, i, target_at(targets, n * pixels + i), z)
                            : loss,
                        i});
    }
  }
  const auto missing = static_cast<std::ptrdiff_t>(std::min(near.size(), most - std::min(most, harder)));
  std::partial_sort(near.begin(), near.begin() + missing, near.end(), [](const Pixel& a, const Pixel& b) {
    return a.loss != b.loss ? a.loss > b.loss : a.at < b.at;
  });
  for (auto pixel = near.begin(); pixel != near.begin() + missing; ++pixel)
    selected[pixel->at] = rules.probability == 1 || pixel->loss > easy;
}

template void select_hardest(const UpsampledProblem&, const float*, const CrossEntropyTargets&,
                             const CrossEntropyRules&, int64_t, const float*, uint8_t*);
template void select_hardest(const UpsampledProblem&, const double*, const CrossEntropyTargets&,
                             const CrossEntropyRules&, int64_t, const double*, uint8_t*);

}  // namespace palimpsest::kernels::cpu::upsampled_loss
