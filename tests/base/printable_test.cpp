#include "palimpsest/base/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace palimpsest {
namespace {

TEST(Printable, LeavesPlainTextInAnyLanguage) {
  for (const char* text : {"", "layer1.0.conv1.weight", "a b\\c '$(x)'",
                           "Stra\xC3\x9F"
                           "e",
                           "\xE9\x81\x93\xE8\xB7\xAF", "\xF0\x9F\x9A\x97"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatMovesACursorOrBreaksALine) {
  EXPECT_EQ(printable("b\nline\r2\t"), "b\\nline\\r2\\t");
  EXPECT_EQ(printable("a\x1b[31mRED\x1b]0;TITLE\x07"), "a\\x1b[31mRED\\x1b]0;TITLE\\x07");
  EXPECT_EQ(printable(std::string("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m");  // C1: the other form of ESC [
  EXPECT_EQ(printable("\xE2\x80\xA8\xE2\x80\xA9"), "\\u2028\\u2029");
}

TEST(Counted, HasAPluralButForOne) {
  EXPECT_EQ(counted(0, "image"), "0 images");
  EXPECT_EQ(counted(1, "image"), "1 image");
  EXPECT_EQ(counted(2, "evaluated image"), "2 evaluated images");
}

TEST(Printable, EscapesControlsOfTheWritingDirection) {
  EXPECT_EQ(printable("\xE2\x80\xAEgnp.exe"), "\\u202egnp.exe");
  EXPECT_EQ(printable("\xE2\x81\xA6"), "\\u2066");
  EXPECT_EQ(printable("\xD8\x9C"), "\\u061c");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("bad\xFF\xFE.png"), "bad\\xff\\xfe.png");
  EXPECT_EQ(printable("\xC3"), "\\xc3");                    // cut off
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, IsUtf8AgreesWithTheEscapes) {
  EXPECT_TRUE(
      is_utf8("Stra\xC3\x9F"
              "e\n"));
  EXPECT_FALSE(is_utf8("\xFF"));
  EXPECT_FALSE(is_utf8("a\xC3"));
}

TEST(Printable, ShortenedCutsBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc...");
  EXPECT_EQ(shortened("a\xC3\x9F"
                      "bc",
                      2),
            "a...");
}

TEST(Printable, ListedNamesTheFirstThree) {
  EXPECT_EQ(listed({}), "");
  EXPECT_EQ(listed({"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(listed({"a", "b", "c", "d"}), "a, b, c, ...");
}

}  // namespace
}  // namespace palimpsest
