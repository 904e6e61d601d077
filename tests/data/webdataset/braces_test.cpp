#include "palimpsest/data/webdataset/braces.h"

#include "tests/support/expect_error.h"

namespace palimpsest::data::shards {
namespace {

using Names = std::vector<std::string>;

TEST(Braces, RangesAndListsExpandInOrder) {
  EXPECT_EQ(expand_braces("a.tar"), Names{"a.tar"});
  EXPECT_EQ(expand_braces("a{8..11}.tar"), (Names{"a8.tar", "a9.tar", "a10.tar", "a11.tar"}));
  EXPECT_EQ(expand_braces("a{08..10}"), (Names{"a08", "a09", "a10"}));
  EXPECT_EQ(expand_braces("a{9..010}"), (Names{"a009", "a010"}));
  EXPECT_EQ(expand_braces("a{00..100}").front(), "a000");
  EXPECT_EQ(expand_braces("a{0..10}").front(), "a0");
  EXPECT_EQ(expand_braces("{000000..000001}"), (Names{"000000", "000001"}));
  EXPECT_EQ(expand_braces("{x,y}/{1..2}.tar"), (Names{"x/1.tar", "x/2.tar", "y/1.tar", "y/2.tar"}));
  EXPECT_EQ(expand_braces("a{,b}"), (Names{"a", "ab"}));
  EXPECT_EQ(expand_braces("{3..3}"), Names{"3"});
  EXPECT_EQ(expand_braces("train-{000000..000146}.tar").size(), 147);
}

TEST(Braces, PatternsThatCannotBeMeantAreErrors) {
  for (const char* pattern :
       {"a{1..2", "a1..2}", "{a{1..2}}", "{2..1}", "{a..b}", "{1..}", "{a}", "{}", "{-1..2}", "{0..1000000}",
        "{0..999}{0..999}{0..9}", "{1..99999999999999999999}"})
    testing::expect_error(ErrorKind::kUsage, {pattern, "{000..146}"}, [&] { expand_braces(pattern); });
}

}  // namespace
}  // namespace palimpsest::data::shards
