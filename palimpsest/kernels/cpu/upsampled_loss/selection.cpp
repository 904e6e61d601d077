#include "palimpsest/kernels/cpu/upsampled_loss/selection.h"

#include "palimpsest/kernels/formulas/upsampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest::kernels::cpu::upsampled_loss {
namespace {

/// Returns -log p[t] of pixel `at` of image n in f64.
template <class T>
double exact_loss(const UpsampledProblem& p, const T* x, int64_t n, int64_t at, int64_t t,
                  std::vector<double>& z) {
  const Source v = source_of(at / p.out.w, p.in.h, p.out.h, p.align_corners),
               u = source_of(at % p.out.w, p.in.w, p.out.w, p.align_corners);
  const int64_t bottom = std::min(v.first + 1, p.in.h - 1), right = std::min(u.first + 1, p.in.w - 1);
  z.resize(static_cast<std::size_t>(p.c));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < p.c; ++c) {
    const auto value = [&](int64_t h, int64_t w) { return static_cast<double>(x[map_index(p, n, c, h, w)]); };
    const double top = (1 - u.weight) * value(v.first, u.first) + u.weight * value(v.first, right);
    const double low = (1 - u.weight) * value(bottom, u.first) + u.weight * value(bottom, right);
    const double logit = (1 - v.weight) * top + v.weight * low;
    z[static_cast<std::size_t>(c)] = logit;
    largest = std::max(largest, logit);
  }
  double sum = 0;
  for (const double logit : z) sum += std::exp(logit - largest);
  return std::log(sum) + largest - z[static_cast<std::size_t>(t)];
}

template <class T>
double largest_logit(const UpsampledProblem& p, const T* x, int64_t n) {
  const int64_t each = p.c * p.in.h * p.in.w;
  double largest = 0;
  for (int64_t i = n * each; i < (n + 1) * each; ++i)
    largest = std::max(largest, std::abs(static_cast<double>(x[i])));
  return largest;
}

}  // namespace

template <class T>
void select_hardest(const UpsampledProblem& problem, const T* x, const CrossEntropyTargets& targets,
                    const CrossEntropyRules& rules, int64_t n, const T* losses, uint8_t* selected) {
  const int64_t pixels = problem.out.h * problem.out.w;
  const auto rank = [](double loss) {
    return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
  };
  std::vector<T> ranked;
  ranked.reserve(static_cast<std::size_t>(pixels));
  for (int64_t i = 0; i < pixels; ++i)
    if (selected[i]) ranked.push_back(static_cast<T>(rank(static_cast<double>(losses[i]))));
  if (ranked.empty()) return;
  const auto most = static_cast<std::size_t>(std::ceil(rules.share * static_cast<double>(ranked.size())));
  const auto last = ranked.begin() + static_cast<std::ptrdiff_t>(std::min(most, ranked.size()) - 1);
  std::nth_element(ranked.begin(), last, ranked.end(), std::greater<>());
  const auto threshold = static_cast<double>(*last);
  // The error of a loss in f32 is some ulp of the largest logit; f64 is taken as it is.
  const double error = sizeof(T) == sizeof(float) ? 1e-6 * (1 + largest_logit(problem, x, n)) : 0;

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
    const double loss = rank(static_cast<double>(losses[i]));
    if (loss > threshold + error) {
      ++harder;
      // NaN passes, so that a diverged loss shows.
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
