#include "palimpsest/kernels/upsampled_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

// The truth of the tests: one plain loop per formula, in double, rounded once where a value is stored.
namespace palimpsest::kernels::reference {
namespace {

template <class Function>
void dispatch(DType dtype, const Function& function) {
  if (dtype == DType::f64)
    function(double{});
  else
    function(float{});
}

struct Tap {
  int64_t first, second;
  double weight;  // of the second
};

Tap tap(int64_t pixel, int64_t in, int64_t out, bool align_corners) {
  double at = 0;
  if (align_corners) {
    if (out > 1) at = static_cast<double>(pixel * (in - 1)) / static_cast<double>(out - 1);
  } else {
    at = std::max(
        (static_cast<double>(pixel) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5, 0.0);
  }
  const int64_t first = std::min(static_cast<int64_t>(std::floor(at)), in - 1);
  return {first, std::min(first + 1, in - 1), at - static_cast<double>(first)};
}

/// The four values of the small map that a pixel reads, with their weights.
struct Corner {
  int64_t h, w;
  double weight;
};
std::vector<Corner> corners(const UpsampledProblem& p, int64_t y, int64_t x) {
  const Tap v = tap(y, p.in.h, p.out.h, p.align_corners), u = tap(x, p.in.w, p.out.w, p.align_corners);
  return {{v.first, u.first, (1 - v.weight) * (1 - u.weight)},
          {v.first, u.second, (1 - v.weight) * u.weight},
          {v.second, u.first, v.weight * (1 - u.weight)},
          {v.second, u.second, v.weight * u.weight}};
}

int64_t index(const UpsampledProblem& p, int64_t n, int64_t c, int64_t h, int64_t w) {
  return p.layout == Layout::kNCHW ? ((n * p.c + c) * p.in.h + h) * p.in.w + w
                                   : ((n * p.in.h + h) * p.in.w + w) * p.c + c;
}

template <class T>
std::vector<double> logits_of(const UpsampledProblem& p, const T* x, int64_t n, int64_t h, int64_t w) {
  std::vector<double> z(static_cast<std::size_t>(p.c));
  for (const Corner& corner : corners(p, h, w))
    if (corner.weight != 0)
      for (int64_t c = 0; c < p.c; ++c)
        z[static_cast<std::size_t>(c)] +=
            corner.weight * static_cast<double>(x[index(p, n, c, corner.h, corner.w)]);
  return z;
}

double log_sum_exp(const std::vector<double>& z) {
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

int64_t id_of(const CrossEntropyTargets& targets, int64_t i) {
  return targets.bytes ? static_cast<const uint8_t*>(targets.ids)[i]
                       : static_cast<const int64_t*>(targets.ids)[i];
}

}  // namespace

CrossEntropySums upsampled_cross_entropy(const UpsampledProblem& p, const void* x,
                                         const CrossEntropyTargets& targets, const CrossEntropyRules& rules,
                                         void* gradient) {
  CrossEntropySums sums;
  const int64_t pixels = p.out.h * p.out.w;
  for (int64_t i = 0; i < p.n * pixels && sums.first_wrong < 0; ++i) {
    const int64_t id = id_of(targets, i);
    if (id != targets.ignored && (id < 0 || id >= p.c)) sums.first_wrong = i;
  }
  if (sums.first_wrong >= 0) return sums;
  const auto weight = [&](int64_t c) { return rules.weight ? rules.weight[c] : 1.0; };
  const double e = rules.label_smoothing;
  dispatch(p.dtype, [&]<class T>(T) {
    const T* const values = static_cast<const T*>(x);
    std::vector<double> d(static_cast<std::size_t>(p.n * p.c * p.in.h * p.in.w));
    for (int64_t n = 0; n < p.n; ++n) {
      std::vector<std::pair<double, int64_t>> hardest;  // -loss, so that the smallest is the hardest
      for (int64_t i = 0; i < pixels; ++i) {
        const int64_t t = id_of(targets, n * pixels + i);
        if (t == targets.ignored) continue;
        const auto z = logits_of(p, values, n, i / p.out.w, i % p.out.w);
        const double loss = log_sum_exp(z) - z[static_cast<std::size_t>(t)];
        hardest.emplace_back(std::isnan(loss) ? -std::numeric_limits<double>::infinity() : -loss, i);
      }
      std::sort(hardest.begin(), hardest.end());
      hardest.resize(static_cast<std::size_t>(std::ceil(rules.share * static_cast<double>(hardest.size()))));
      for (const auto& [easiness, i] : hardest) {
        if (rules.probability < 1 && -easiness <= -std::log(rules.probability)) continue;
        const int64_t t = id_of(targets, n * pixels + i);
        const auto z = logits_of(p, values, n, i / p.out.w, i % p.out.w);
        const double log_sum = log_sum_exp(z);
        ++sums.count;
        sums.weight += weight(t);
        sums.loss += (1 - e) * weight(t) * (log_sum - z[static_cast<std::size_t>(t)]);
        double all = 0;
        for (int64_t c = 0; c < p.c; ++c) {
          if (e > 0)
            sums.loss +=
                e / static_cast<double>(p.c) * weight(c) * (log_sum - z[static_cast<std::size_t>(c)]);
          all += weight(c);
        }
        for (int64_t c = 0; c < p.c; ++c) {
          const double probability = std::exp(z[static_cast<std::size_t>(c)] - log_sum);
          const double dz = probability * ((1 - e) * weight(t) + e * all / static_cast<double>(p.c)) -
                            (c == t ? (1 - e) * weight(t) : 0) - e / static_cast<double>(p.c) * weight(c);
          for (const Corner& corner : corners(p, i / p.out.w, i % p.out.w))
            d[static_cast<std::size_t>(index(p, n, c, corner.h, corner.w))] += corner.weight * dz;
        }
      }
    }
    if (gradient)
      for (std::size_t i = 0; i < d.size(); ++i) static_cast<T*>(gradient)[i] = static_cast<T>(d[i]);
  });
  return sums;
}

void upsampled_argmax(const UpsampledProblem& p, const void* x, bool bytes, void* ids) {
  dispatch(p.dtype, [&]<class T>(T) {
    for (int64_t n = 0; n < p.n; ++n)
      for (int64_t i = 0; i < p.out.h * p.out.w; ++i) {
        const auto z = logits_of(p, static_cast<const T*>(x), n, i / p.out.w, i % p.out.w);
        std::size_t best = 0;
        for (std::size_t c = 1; c < z.size(); ++c)
          if (z[c] > z[best] || (std::isnan(z[c]) && !std::isnan(z[best]))) best = c;
        const int64_t at = n * p.out.h * p.out.w + i;
        if (bytes)
          static_cast<uint8_t*>(ids)[at] = static_cast<uint8_t>(best);
        else
          static_cast<int64_t*>(ids)[at] = static_cast<int64_t>(best);
      }
  });
}

}  // namespace palimpsest::kernels::reference
