#include "palimpsest/io/common/child_process.h"

#include "tests/support/temporary_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <system_error>

namespace palimpsest::io::child_process_tests {
namespace {

using testing::bytes_of;
using testing::TemporaryFolder;

/// Runs `command` by the shell; what it printed goes to `output`.
ChildResult shell(const std::string& command, const std::filesystem::path& output) {
  const int descriptor = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const auto result = run_child({"sh", "-c", command}, descriptor);
  close(descriptor);
  return result;
}

TEST(ChildProcess, ItsOutputErrorsAndExitCodeComeBack) {
  const TemporaryFolder folder;
  const auto result = shell("echo out; echo err >&2; exit 3", folder / "out");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_EQ(bytes_of(folder / "out"), "out\n");
}

TEST(ChildProcess, ASignalIsAnExitCode) {
  const TemporaryFolder folder;
  EXPECT_EQ(shell("kill -9 $$", folder / "out").exit_code, 128 + 9);
}

TEST(ChildProcess, ItsInputIsEmptyAndManyErrorsDoNotBlockIt) {
  const TemporaryFolder folder;
  const auto result = shell("cat; yes 0123456789 | head -c 1000000 >&2", folder / "out");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.errors.size(), 65536u);
  EXPECT_EQ(bytes_of(folder / "out"), "");
}

TEST(ChildProcess, AProgramThatDoesNotExistIsASystemError) {
  EXPECT_THROW(run_child({"/no/such/program"}, STDOUT_FILENO), std::system_error);
}

}  // namespace
}  // namespace palimpsest::io::child_process_tests
