#include "palimpsest/base/named_enum.h"

#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace palimpsest {
namespace {

using testing::expect_error;

enum class Colour { kRed, kBlue, kNameless };

constexpr NamedEnum kColours{"colour",
                             {EnumName{Colour::kRed, "red"},
                              {Colour::kBlue, "blue"},
                              {Colour::kBlue, "azure"},
                              {Colour::kRed, "crimson", false}}};

static_assert(kColours.find("blue") == Colour::kBlue && !kColours.find("green"));
static_assert(kColours.name(Colour::kRed) == "red");
static_assert(kColours.size() == 4);

TEST(NamedEnum, EveryRowIsRead) {
  EXPECT_EQ(kColours.parse("red"), Colour::kRed);
  EXPECT_EQ(kColours.parse("azure"), Colour::kBlue);
  EXPECT_EQ(kColours.parse("crimson"), Colour::kRed);
}

TEST(NamedEnum, AValueIsWrittenUnderItsFirstName) {
  EXPECT_EQ(kColours.name(Colour::kBlue), "blue");
}

TEST(NamedEnum, OldNamesAreNotListed) {
  EXPECT_EQ(kColours.names(), (std::vector<std::string>{"red", "blue", "azure"}));
}

TEST(NamedEnum, AnUnknownNameIsRefusedWithTheNearestOne) {
  expect_error(ErrorKind::kUsage, {"unknown colour 'blu'; did you mean 'blue'? (known: red, blue, azure)"},
               [] { (void)kColours.parse("blu"); });
}

TEST(NamedEnum, AValueWithoutANameIsAnInternalError) {
  expect_error(ErrorKind::kInternal, {"colour has no name: 2"},
               [] { (void)kColours.name(Colour::kNameless); });
}

}  // namespace
}  // namespace palimpsest
