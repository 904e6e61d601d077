#include "palimpsest/kernels/cpu/upsampled_loss/selection.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/formulas/upsampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace palimpsest::kernels::cpu::upsampled_loss {
namespace {

/// NaN is harder than any number, so that a diverged loss shows.
template <class T>
T rank_of(T loss) {
  return std::isnan(loss) ? std::numeric_limits<T>::infinity() : loss;
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

/// Returns a number that is larger for a rank that is larger as f32.
template <class T>
uint32_t key_of(T rank) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(rank));
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

float rank_of_key(uint32_t key) {
  return std::bit_cast<float>(key >> 31 ? key & 0x7fffffffU : ~key);
}

/// Returns in how many parts the pixels of an image are read, which threads share. In one part there are enough
/// to make the counts of a part cheap.
constexpr int64_t kMostParts = 8;
int64_t parts_of(int64_t pixels) {
  constexpr int64_t kPixelsPerPart = 16384;
  return std::clamp<int64_t>(pixels / kPixelsPerPart, 1, kMostParts);
}
/// Calls visit(part, i) for each pixel i that is selected, in order within a part.
template <class Visit>
void for_each_selected(const uint8_t* selected, int64_t pixels, const Visit& visit) {
  const int64_t parts = parts_of(pixels);
  parallel_tasks(parts, [&](int64_t part) {
    for (int64_t i = pixels * part / parts; i < pixels * (part + 1) / parts; ++i)
      if (selected[i]) visit(static_cast<std::size_t>(part), i);
  });
}

/// Returns the rank of the pixel at `place` of the selected ones, the hardest at 1: digit by digit of the keys, until
/// few enough have the digits that are known.
template <class T>
double rank_at(const T* losses, const uint8_t* selected, int64_t pixels, int64_t place) {
  constexpr std::size_t kDigits = 1 << 12;
  uint32_t key = 0, known = 0;  // the bits of `key` that are known
  int64_t equal = pixels;       // in these bits
  std::vector<std::array<uint32_t, kDigits>> counts(static_cast<std::size_t>(parts_of(pixels)));
  for (const auto& [shift, bits] : {std::pair{20, 12}, {8, 12}, {0, 8}}) {
    const uint32_t digits = (1U << bits) - 1;
    for (auto& of_part : counts) of_part.fill(0);
    for_each_selected(selected, pixels, [&](std::size_t part, int64_t i) {
      const uint32_t one = key_of(rank_of(losses[i]));
      if ((one & known) == key) ++counts[part][one >> shift & digits];
    });
    for (uint32_t digit = digits;; --digit) {
      equal = 0;
      for (const auto& of_part : counts) equal += of_part[digit];
      if (place <= equal) {
        key |= digit << shift;
        break;
      }
      place -= equal;
    }
    known |= digits << shift;
    if (equal <= pixels / 8) break;
  }
  if (std::is_same_v<T, float> && known == ~0U) return rank_of_key(key);
  std::array<std::vector<T>, kMostParts> of_parts;
  for_each_selected(selected, pixels, [&](std::size_t part, int64_t i) {
    const T rank = rank_of(losses[i]);
    if ((key_of(rank) & known) == key) of_parts[part].push_back(rank);
  });
  std::vector<T> ranks;
  ranks.reserve(static_cast<std::size_t>(equal));
  for (const auto& of_part : of_parts) ranks.insert(ranks.end(), of_part.begin(), of_part.end());
  std::nth_element(ranks.begin(), ranks.begin() + (place - 1), ranks.end(), std::greater<>());
  return static_cast<double>(ranks[static_cast<std::size_t>(place - 1)]);
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
  const int64_t count = std::count(selected, selected + pixels, 1);
  if (count == 0) return;
  const auto most = static_cast<std::size_t>(std::ceil(rules.share * static_cast<double>(count)));
  const auto place = std::min(static_cast<int64_t>(most), count);
  const double threshold = rank_at(losses, selected, pixels, place);
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
  struct alignas(64) Part {  // a cache line of its own
    std::vector<Pixel> near;
    std::size_t harder = 0;
  };
  std::array<Part, kMostParts> parts;
  const double easy = -std::log(rules.probability);
  for_each_selected(selected, pixels, [&](std::size_t part, int64_t i) {
    thread_local std::vector<double> z;
    const double loss = rank_of(static_cast<double>(losses[i]));
    if (loss > threshold + error) {
      ++parts[part].harder;
      if (rules.probability < 1 && loss - error <= easy)
        selected[i] = exact_loss(problem, x, n, i, target_at(targets, n * pixels + i), z) > easy;
    } else {
      selected[i] = 0;
      if (loss >= threshold - error)
        parts[part].near.push_back({error > 0 && std::isfinite(loss)
                                        ? exact_loss(problem, x, n, i, target_at(targets, n * pixels + i), z)
                                        : loss,
                                    i});
    }
  });
  std::vector<Pixel> near;
  std::size_t harder = 0;
  for (const Part& part : parts) {
    near.insert(near.end(), part.near.begin(), part.near.end());
    harder += part.harder;
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
