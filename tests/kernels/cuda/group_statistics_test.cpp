#include "palimpsest/kernels/cuda/group_statistics.h"

#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/group_statistics_case.h"

namespace palimpsest::testing {
namespace {

class CudaGroupStatistics : public ::testing::TestWithParam<GroupStatisticsCase> {};

TEST_P(CudaGroupStatistics, EqualTheReference) {
  const auto merge = [](const kernels::GroupParts& parts, double eps, const kernels::GroupStatistics& merged,
                        DType dtype, const kernels::RunningStatistics& running) {
    kernels::cuda::merge_statistics(parts, eps, merged, dtype, running, nullptr);
  };
  for (const Order order : kOrders) {
    const WithOrder with_order(order);
    expect_merge_equals_the_reference<float>(GetParam(), merge);
    expect_merge_equals_the_reference<double>(GetParam(), merge);
  }
}

INSTANTIATE_TEST_SUITE_P(Merge, CudaGroupStatistics, ::testing::ValuesIn(group_statistics_cases()));

}  // namespace
}  // namespace palimpsest::testing
