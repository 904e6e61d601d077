#include "palimpsest/train/common/count_ids.h"

#include "tests/train/support.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest::train {
namespace {

TEST(CountIds, AddingThemGivesTheCountsOfBincountAndWaitsForNothing) {
  at::manual_seed(2);
  // One counter per id, some and 64.
  for (const int64_t bins : {int64_t{70000}, int64_t{10000}, int64_t{26}, int64_t{1}})
    for (const int64_t size : {0, 1, 5000}) {
      const at::Tensor ids = at::randint(bins, {size, 3}, at::kLong);
      at::Tensor added;
      {
        const testing::OperatorCalls calls;
        added = count_ids_by_adding(ids, bins);
        EXPECT_EQ(calls.waits(), 0) << calls.text();
      }
      EXPECT_TRUE(added.equal(ids.flatten().bincount({}, bins))) << bins << " " << size;
      EXPECT_TRUE(count_ids(ids, bins).equal(added));
    }
}

TEST(CountIds, TheFirstWrongLabelIsFoundWithoutAWait) {
  const at::Tensor targets = at::tensor({1, 255, 0, 7, -3, 2}, at::kLong).view({2, 3});
  const auto label = [&](int64_t classes, int64_t ignore_id) {
    const testing::OperatorCalls calls;
    const at::Tensor found = first_wrong_label(targets, wrong_targets(targets, classes, ignore_id));
    EXPECT_EQ(calls.waits(), 0) << calls.text();
    return found.item<double>();
  };
  EXPECT_EQ(label(3, 255), 7);
  EXPECT_EQ(label(3, 7), 255);
  EXPECT_EQ(label(8, 255), -3);
  EXPECT_TRUE(std::isnan(label(256, -3)));
  const at::Tensor none = at::empty({0}, at::kLong);
  EXPECT_TRUE(std::isnan(first_wrong_label(none, wrong_targets(none, 3, 255)).item<double>()));
}

}  // namespace
}  // namespace palimpsest::train
