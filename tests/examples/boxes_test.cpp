#include "examples/mixed_precision/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace mixed_precision {
namespace {

using Assigned = std::vector<int64_t>;  // the kind of the object of each box

Assigned kinds_of(const Targets& targets, int64_t image = 0) {
  const auto row = targets.kinds[image].contiguous();
  return {row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + row.numel()};
}

TEST(Match, AnObjectLeavesTheOnlyBoxOfAnEarlierOneAlone) {
  const std::vector<Box> boxes{{0, 0, 10, 10}, {0, 0, 40, 40}, {50, 50, 60, 60}};
  // Each overlaps box 0 most, by less than 0.5.
  const Object first{1, {0, 0, 9, 4}}, second{2, {1, 5, 10, 10}};
  EXPECT_EQ(kinds_of(match({{first, second}}, boxes)), (Assigned{1, 2, 0}));
  EXPECT_EQ(kinds_of(match({{second, first}}, boxes)), (Assigned{2, 1, 0}));
  const auto offsets = match({{first, second}}, boxes).offsets[0][1];
  const auto alone = match({{second}}, {boxes[1]}).offsets[0][0];
  EXPECT_TRUE(offsets.equal(alone)) << "offsets from the box that the second object has";
}

TEST(Match, AnObjectTakesABoxThatAnotherHasOnlyByItsOverlap) {
  const std::vector<Box> boxes{{0, 0, 10, 10}, {0, 0, 10, 11}};
  const Object first{1, {0, 0, 10, 10}}, second{2, {0, 0, 10, 20}};
  EXPECT_EQ(kinds_of(match({{first}}, boxes)), (Assigned{1, 1}));
  EXPECT_EQ(kinds_of(match({{first, second}}, boxes)), (Assigned{1, 2}));
}

TEST(Match, AsManyObjectsAsBoxesHaveOneEachAndFurtherOnesHaveNone) {
  const std::vector<Box> boxes{{0, 0, 10, 10}, {20, 20, 30, 30}, {40, 40, 50, 50}};
  const Object object{1, {0, 0, 10, 10}};
  std::vector<Object> objects;
  for (int64_t kind = 1; kind <= 3; ++kind) objects.push_back({kind, object.box});
  EXPECT_EQ(kinds_of(match({objects}, boxes)), (Assigned{1, 2, 3}));
  objects.push_back({4, object.box});
  EXPECT_EQ(kinds_of(match({objects}, boxes)), (Assigned{1, 2, 3}));
}

TEST(Match, ABoxBelongsToTheObjectThatItOverlapsMost) {
  const std::vector<Box> boxes{{0, 0, 10, 10}, {0, 1, 10, 11}, {30, 30, 40, 40}};
  const Object upper{1, {0, 0, 10, 10}}, lower{2, {0, 2, 10, 11}};
  EXPECT_EQ(kinds_of(match({{upper, lower}, {lower}, {}}, boxes)), (Assigned{1, 2, 0}));
  EXPECT_EQ(kinds_of(match({{upper, lower}, {lower}, {}}, boxes), 1), (Assigned{2, 2, 0}));
  EXPECT_EQ(kinds_of(match({{upper, lower}, {lower}, {}}, boxes), 2), (Assigned{0, 0, 0}));
}

}  // namespace
}  // namespace mixed_precision
