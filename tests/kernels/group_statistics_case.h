#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/group_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// Parts of a group: some ranks with an empty batch, means far from 0 and far apart.
struct GroupStatisticsCase {
  int64_t channels;
  std::vector<double> counts;  // per rank
  double offset = 0;           // of all means

  std::vector<double> parts() const {
    Random random(static_cast<uint64_t>(channels) * 31 + counts.size());
    std::vector<double> values;
    for (const double count : counts) {
      for (int64_t c = 0; c < channels; ++c) values.push_back(offset + random.uniform(-3, 3));
      for (int64_t c = 0; c < channels; ++c)
        values.push_back(count == 1 ? 0 : count == 0 ? std::nan("") : random.uniform(0, 2));
      values.push_back(count);
    }
    return values;
  }

  friend void PrintTo(const GroupStatisticsCase& c, std::ostream* out) {
    *out << c.channels << " channels, counts";
    for (const double n : c.counts) *out << ' ' << n;
    *out << ", offset " << c.offset;
  }
};

inline std::vector<GroupStatisticsCase> group_statistics_cases() {
  std::vector<GroupStatisticsCase> cases;
  for (const int64_t channels : {1, 65, 255, 256, 257, 1000})
    for (const std::vector<double>& counts :
         std::vector<std::vector<double>>{{6}, {1, 1}, {0, 12}, {7, 0, 5}, {1, 1000, 3, 1e9}, {0, 0}, {0, 1}})
      for (const double offset : {0.0, 1e6}) cases.push_back({channels, counts, offset});
  return cases;
}

/// What a merge writes, with running statistics of type T.
template <class T>
struct MergedCase {
  std::vector<double> mean, var, inv_std, count;
  std::vector<T> running_mean, running_var;

  explicit MergedCase(int64_t channels)
      : mean(static_cast<std::size_t>(channels), -7),
        var(mean),
        inv_std(mean),
        count(1, -7),
        running_mean(mean.size(), T(0.5)),
        running_var(mean.size(), T(1.5)) {}

  kernels::GroupStatistics pointers() { return {mean.data(), var.data(), inv_std.data(), count.data()}; }
  kernels::RunningStatistics running() { return {running_mean.data(), running_var.data(), 0.3}; }
};

/// merge(parts, eps, merged, running dtype, running) must give what the reference gives.
template <class T, class Merge>
void expect_merge_equals_the_reference(const GroupStatisticsCase& given, const Merge& merge) {
  const std::vector<double> values = given.parts();
  const kernels::GroupParts parts{values.data(), static_cast<int64_t>(given.counts.size()), given.channels};
  const DType dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
  MergedCase<T> got(given.channels), want(given.channels);
  merge(parts, 1e-5, got.pointers(), dtype, got.running());
  kernels::reference::merge_statistics(parts, 1e-5, want.pointers(), dtype, want.running());
  EXPECT_EQ(got.count, want.count);
  const double scale = std::abs(given.offset) + 3;
  const double ulp = sizeof(T) == 8 ? 1e-15 : 1e-7;
  for (std::size_t c = 0; c < got.mean.size(); ++c) {
    ASSERT_NEAR(got.mean[c], want.mean[c], 1e-15 * scale) << c;
    ASSERT_NEAR(got.var[c], want.var[c], 1e-14 + 1e-15 * scale) << c;
    ASSERT_DOUBLE_EQ(got.inv_std[c], 1 / std::sqrt(got.var[c] + 1e-5)) << c;
    ASSERT_NEAR(static_cast<double>(got.running_mean[c]), static_cast<double>(want.running_mean[c]),
                ulp * scale)
        << c;
    ASSERT_NEAR(static_cast<double>(got.running_var[c]), static_cast<double>(want.running_var[c]),
                16 * ulp + 1e-15 * scale)
        << c;
  }
}

}  // namespace palimpsest::testing
