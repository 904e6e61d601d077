#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/upsampled_loss.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

namespace palimpsest::testing {

using kernels::CrossEntropyRules;
using kernels::CrossEntropySums;
using kernels::CrossEntropyTargets;
using kernels::UpsampledProblem;

struct UpsampledCase {
  int64_t n, c;
  Pair2 in, out;
};

inline std::ostream& operator<<(std::ostream& out, const UpsampledCase& c) {
  return out << "(" << c.n << ", " << c.c << ", " << c.in.h << ", " << c.in.w << ") to " << c.out.h << "x"
             << c.out.w;
}

/// Channels around the widths of vectors; maps of one pixel; scales below, at and above 1, whole and broken.
inline const std::vector<UpsampledCase>& upsampled_cases() {
  static const std::vector<UpsampledCase> all = [] {
    std::vector<UpsampledCase> cases{{2, 19, {5, 7}, {40, 56}}, {1, 150, {3, 4}, {24, 32}},
                                     {1, 3, {1, 1}, {9, 5}},    {2, 5, {6, 6}, {6, 6}},
                                     {1, 4, {9, 11}, {4, 3}},   {3, 21, {4, 5}, {13, 29}},
                                     {1, 2, {1, 8}, {1, 60}},   {1, 7, {8, 1}, {61, 1}},
                                     {1, 6, {7, 7}, {1, 1}},    {2, 12, {20, 30}, {80, 240}}};
    for (const int64_t c : {1, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 129})
      cases.push_back({1, c, {3, 3}, {8, 11}});
    return cases;
  }();
  return all;
}

template <class T>
struct UpsampledInputs {
  UpsampledProblem problem;
  std::vector<T> x;
  std::vector<int64_t> ids;
  std::vector<double> weight;

  UpsampledInputs(const UpsampledCase& c, Layout layout, bool align_corners, double largest,
                  uint64_t seed = 3) {
    problem = {c.n,          c.c, c.in, c.out, layout, std::is_same_v<T, double> ? DType::f64 : DType::f32,
               align_corners};
    Random random(seed);
    x.resize(static_cast<std::size_t>(c.n * c.c * c.in.h * c.in.w));
    for (T& value : x) value = static_cast<T>(random.uniform(-largest, largest));
    ids.resize(static_cast<std::size_t>(c.n * c.out.h * c.out.w));
    for (int64_t& id : ids)
      id = random.uniform(0, 1) < 0.1 ? 255
                                      : static_cast<int64_t>(random.uniform(0, static_cast<double>(c.c)));
    for (int64_t i = 0; i < c.c; ++i) weight.push_back(random.uniform(0, 2));
  }

  CrossEntropyTargets targets() const { return {ids.data(), false, 255}; }
};

template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  double difference = 0, scale = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
    if (std::isnan(a[i]) != std::isnan(b[i])) return std::numeric_limits<double>::infinity();
  }
  return difference / scale;
}

}  // namespace palimpsest::testing
