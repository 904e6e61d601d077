#include "tests/kernels/group_statistics_case.h"

namespace palimpsest::testing {
namespace {

class GroupStatistics : public ::testing::TestWithParam<GroupStatisticsCase> {};

TEST_P(GroupStatistics, EqualTheReference) {
  expect_merge_equals_the_reference<float>(GetParam(), kernels::cpu::merge_statistics);
  expect_merge_equals_the_reference<double>(GetParam(), kernels::cpu::merge_statistics);
}

INSTANTIATE_TEST_SUITE_P(Merge, GroupStatistics, ::testing::ValuesIn(group_statistics_cases()));

TEST(GroupStatisticsOfOneRank, AreItsOwnToTheLastBit) {
  const GroupStatisticsCase given{100, {12}, 1e3};
  const std::vector<double> values = given.parts();
  MergedCase<float> got(100);
  kernels::cpu::merge_statistics({values.data(), 1, 100}, 1e-5, got.pointers());
  for (std::size_t c = 0; c < 100; ++c) {
    EXPECT_EQ(got.mean[c], values[c]);
    EXPECT_DOUBLE_EQ(got.var[c], values[100 + c]);
  }
  EXPECT_EQ(got.running_mean[0], 0.5f);  // no running statistics were given
}

TEST(GroupStatisticsOfEqualParts, AreThoseOfTheWholeBatch) {
  // 1 and 3 on one rank, 5 and 9 on the other: mean 4.5, squares 12.25 + 2.25 + 0.25 + 20.25.
  const double values[] = {2, 1, 2, 7, 4, 2};
  MergedCase<double> got(1);
  kernels::cpu::merge_statistics({values, 2, 1}, 0, got.pointers(), DType::f64, got.running());
  EXPECT_EQ(got.mean[0], 4.5);
  EXPECT_EQ(got.var[0], 8.75);
  EXPECT_EQ(got.inv_std[0], 1 / std::sqrt(8.75));
  EXPECT_EQ(got.count[0], 4);
  EXPECT_DOUBLE_EQ(got.running_mean[0], 0.7 * 0.5 + 0.3 * 4.5);
  EXPECT_DOUBLE_EQ(got.running_var[0], 0.7 * 1.5 + 0.3 * 35.0 / 3);
}

TEST(GroupStatisticsOfLessThanTwoValues, MoveNoRunningStatistics) {
  for (const double count : {0.0, 1.0}) {
    const double values[] = {2, 0, count};
    MergedCase<double> got(1);
    kernels::cpu::merge_statistics({values, 1, 1}, 1e-5, got.pointers(), DType::f64, got.running());
    EXPECT_EQ(got.count[0], count);
    EXPECT_EQ(got.running_mean[0], 0.5);
    EXPECT_EQ(got.running_var[0], 1.5);
    EXPECT_TRUE(std::isfinite(got.inv_std[0]));
  }
}

}  // namespace
}  // namespace palimpsest::testing
