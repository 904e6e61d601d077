#include "palimpsest/base/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace palimpsest {
namespace {

const std::vector<std::string> kNames = {"resnet18", "resnet50", "resnext50_32x4d", "densenet121"};

TEST(NearestName, FindsAMissingAnExtraAWrongAndASwappedLetter) {
  EXPECT_EQ(nearest_name("resnt50", kNames), "resnet50");
  EXPECT_EQ(nearest_name("resnett50", kNames), "resnet50");
  EXPECT_EQ(nearest_name("resnef18", kNames), "resnet18");
  EXPECT_EQ(nearest_name("dnesenet121", kNames), "densenet121");
}

TEST(NearestName, IsTheNameItselfWhereItIsKnown) {
  for (const std::string& name : kNames) EXPECT_EQ(nearest_name(name, kNames), name);
}

TEST(NearestName, IsTheBeginningOrTheContinuationOfAName) {
  const std::vector<std::string> flags = {"--lr", "--batch", "--eval-batch", "--output-stride", "--output"};
  EXPECT_EQ(nearest_name("--batch-size", flags), "--batch");
  EXPECT_EQ(nearest_name("--out", flags), "--output");
  EXPECT_EQ(nearest_name("--lr-of-the-head", flags), "");
  EXPECT_EQ(nearest_name("--o", flags), "");
}

TEST(NearestName, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("vgg", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name("inplace", std::vector<std::string>{"output", "input"}), "");
  EXPECT_EQ(nearest_name("resnet50", {}), "");
}

TEST(NearestName, MessageNamesWhatWasGivenTheNearestAndAllThatAreKnown) {
  const std::vector<std::string> layouts = {"nchw", "nhwc"};
  EXPECT_EQ(unknown_name_message("layout", "nhcw", layouts),
            "unknown layout 'nhcw'; did you mean 'nchw'? (known: nchw, nhwc)");
  EXPECT_EQ(unknown_name_message("layout", "zzzzzz", layouts), "unknown layout 'zzzzzz' (known: nchw, nhwc)");
}

TEST(NearestName, AKeyOfMegabytesCostsNothingAndIsShownShortened) {
  const std::string key(50 << 20, 'k');
  EXPECT_EQ(nearest_name(key, kNames), "");
  EXPECT_LT(unknown_name_message("key", key, kNames).size(), 250u);
}

}  // namespace
}  // namespace palimpsest
