#include "palimpsest/data/files.h"

#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace palimpsest::data {
namespace {

using testing::put;
using testing::TemporaryFolder;
using Paths = std::vector<std::filesystem::path>;

TEST(Files, WhatIsNoImageIsListedAsSkipped) {
  const TemporaryFolder folder;
  for (const char* name : {"b.PNG", "a.jpg", "c.bmp", ".d.png", "e", "sub/f.png"}) put(folder / name, "x");
  Paths skipped;
  EXPECT_EQ(list_images(folder.path(), "images", &skipped), (Paths{folder / "a.jpg", folder / "b.PNG"}));
  EXPECT_EQ(skipped, (Paths{folder / ".d.png", folder / "c.bmp", folder / "e", folder / "sub"}));
  EXPECT_EQ(list_images(folder.path(), "images").size(), 2u);
  EXPECT_EQ(skipped_text(skipped),
            "skipped 4 files or folders, which are hidden or no .jpg, .jpeg or .png file: " +
                (folder / ".d.png").string() + ", " + (folder / "c.bmp").string() + ", " +
                (folder / "e").string() + ", ...");
}

TEST(Files, FilesBesideFoldersOfClassesAreListedAsSkipped) {
  const TemporaryFolder folder;
  for (const char* name : {"cat/a.png", ".cache/b.png", "c.png"}) put(folder / name, "x");
  Paths skipped;
  EXPECT_EQ(list_folders(folder.path(), "classes", &skipped), (Paths{folder / "cat"}));
  EXPECT_EQ(skipped, (Paths{folder / ".cache", folder / "c.png"}));
  EXPECT_EQ(skipped_text({"a.gif"}),
            "skipped 1 file or folder, which is hidden or no .jpg, .jpeg or .png file: a.gif");
  EXPECT_EQ(skipped_text({}), "");
}

}  // namespace
}  // namespace palimpsest::data
