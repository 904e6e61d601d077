#include "palimpsest/io/folder_lock.h"

#include "palimpsest/io/atomic_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

namespace palimpsest::io {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

TEST(FolderLock, TheSecondLockIsRefusedUntilTheFirstIsGone) {
  const TemporaryFolder folder;
  std::optional<FolderLock> first(std::in_place, folder / "run");
  expect_error(ErrorKind::kOutput, {"run", "in use", std::to_string(::getpid()), "--output"},
               [&] { FolderLock second(folder / "run"); });
  first.reset();
  const FolderLock second(folder / "run");
}

TEST(FolderLock, AKilledProgramHoldsNothing) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    new FolderLock(folder / "run");
    ::_exit(0);  // no destructor, as after SIGKILL
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/.lock"));
  {
    const FolderLock lock(folder / "run");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
}

TEST(FolderLock, RemovesTheEmptyFoldersThatItMadeAndNoOthers) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder / "a/b/c");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  {
    const FolderLock lock(folder / "a/b/c");
    write_file_atomically(folder / "a/b/file", "kept");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "a/b/file"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/b/c"));
}

TEST(FolderLock, AFolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "");
  expect_error(ErrorKind::kOutput, {"file/run", "cannot write"},
               [&] { FolderLock lock(folder / "file/run"); });
  expect_error(ErrorKind::kOutput, {"file", "cannot write"}, [&] { FolderLock lock(folder / "file"); });
}

}  // namespace
}  // namespace palimpsest::io
