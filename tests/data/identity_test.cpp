#include "palimpsest/data/identity.h"

#include "palimpsest/io/atomic_file.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace palimpsest::data {
namespace {

using io::write_file_atomically;
using testing::TemporaryFolder;

TEST(FilesIdentity, IsThatOfNamesAndSizesWhereverTheFilesLie) {
  const TemporaryFolder one, two;
  const auto identity = [](const TemporaryFolder& root, const char* last) {
    return files_identity({{root / "cat/a.png", root / last}}, 2);
  };
  for (const TemporaryFolder* root : {&one, &two}) {
    write_file_atomically(*root / "cat/a.png", "123");
    write_file_atomically(*root / "cat/b.png", "456");
    write_file_atomically(*root / "dog/b.png", "456");
  }
  const std::string first = identity(one, "cat/b.png");
  EXPECT_TRUE(first.starts_with("2 images (")) << first;
  EXPECT_EQ(identity(two, "cat/b.png"), first);
  EXPECT_NE(identity(one, "dog/b.png"), first) << "another folder, which is another class";
  write_file_atomically(one / "cat/b.png", "4567");
  EXPECT_NE(identity(one, "cat/b.png"), first) << "another size";
  std::filesystem::remove(one / "cat/b.png");
  EXPECT_NE(identity(one, "cat/b.png"), first) << "a file that is gone";
}

}  // namespace
}  // namespace palimpsest::data
