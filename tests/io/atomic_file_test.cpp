#include "palimpsest/io/atomic_file.h"

#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <stdexcept>
#include <thread>

namespace palimpsest::io {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::FileSizeLimit;
using testing::put;
using testing::TemporaryFolder;
using Names = std::vector<std::string>;

TEST(AtomicFile, CommitReplacesTheFileAndLeavesNothingElse) {
  const TemporaryFolder folder;
  put(folder / "a", "old and longer than the new one");
  AtomicFile file(folder / "a");
  file.write("new ", 4);
  file.write("bytes", 5);
  EXPECT_EQ(bytes_of(folder / "a"), "old and longer than the new one");
  file.commit();
  EXPECT_EQ(bytes_of(folder / "a"), "new bytes");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
  const TemporaryFolder folder;
  put(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new", 3);
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(bytes_of(folder / "a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, MissingParentFoldersAreMade) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x/y/z", "deep");
  EXPECT_EQ(bytes_of(folder / "x/y/z"), "deep");
}

TEST(AtomicFile, ANewFileHasTheUsualPermissions) {
  const TemporaryFolder folder;
  const mode_t mask = umask(022);
  write_file_atomically(folder / "a", "x");
  umask(mask);
  struct stat status{};
  ASSERT_EQ(stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
}

TEST(AtomicFile, AnEmptyFileAndALongNameAreFine) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  write_file_atomically(folder / name, "");
  EXPECT_EQ(folder.names(), Names{name});
}

TEST(AtomicFile, ASymbolicLinkIsFollowed) {
  const TemporaryFolder folder;
  put(folder / "target", "old");
  std::filesystem::create_symlink("target", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(bytes_of(folder / "target"), "new");
}

TEST(AtomicFile, AFullDiskIsAnErrorAndTheOldFileStays) {
  const TemporaryFolder folder;
  put(folder / "a", "old");
  const std::string large(1 << 20, 'x');
  {
    const FileSizeLimit limit(1000);
    expect_error(ErrorKind::kOutput, {(folder / "a").string(), "File too large", "ulimit"},
                 [&] { write_file_atomically(folder / "a", large); });
  }
  EXPECT_EQ(bytes_of(folder / "a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
  write_file_atomically(folder / "a", large);  // SIGXFSZ is not left pending: this process still lives
  EXPECT_EQ(bytes_of(folder / "a"), large);
}

TEST(AtomicFile, AfterAnErrorTheObjectRefusesMore) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "a");
  {
    const FileSizeLimit limit(10);
    EXPECT_THROW(file.write("more than ten bytes", 19), Error);
  }
  EXPECT_THROW(file.write("x", 1), std::logic_error);
  EXPECT_THROW(file.commit(), std::logic_error);
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFile, APathBelowARegularFileIsAnError) {
  const TemporaryFolder folder;
  put(folder / "file", "");
  expect_error(ErrorKind::kOutput,
               {(folder / "file/sub/a").string(), "Not a directory", "another output folder"},
               [&] { AtomicFile file(folder / "file/sub/a"); });
  expect_error(ErrorKind::kOutput, {(folder / "file/a").string(), "Not a directory"},
               [&] { AtomicFile file(folder / "file/a"); });
}

TEST(AtomicFile, AFolderInThePlaceOfTheFileIsAnError) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  expect_error(ErrorKind::kOutput, {(folder / "a").string(), "Is a directory"},
               [&] { AtomicFile file(folder / "a"); });
  expect_error(ErrorKind::kOutput, {"Is a directory"}, [&] { AtomicFile file(folder / "new/"); });
  expect_error(ErrorKind::kOutput, {"Is a directory"}, [&] { AtomicFile file(std::filesystem::path{}); });
}

TEST(AtomicFile, WhatAKilledWriterLeavesIsReusedAndNeverSeen) {
  const TemporaryFolder folder;
  put(folder / "a", "old");
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      AtomicFile file(folder / "a");
      file.write("half of a long content that must not show up", 44);
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(bytes_of(folder / "a"), "old");
    EXPECT_EQ(folder.names().size(), 2u);  // one leftover, however often
  }
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(bytes_of(folder / "a"), "new");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, WhatOthersPreparedInThePlaceOfTheTemporaryFileIsNotUsed) {
  const TemporaryFolder folder;
  put(folder / "secret", "untouched");
  std::filesystem::create_symlink("secret", folder / ".a.0.tmp");
  ASSERT_EQ(mkfifo((folder / ".a.1.tmp").c_str(), 0666), 0);  // opening it would wait for a reader
  std::filesystem::create_directory(folder / ".a.2.tmp");
  put(folder / ".a.3.tmp", "readable to all");
  const bool foreign = chown((folder / ".a.3.tmp").c_str(), 12345, 12345) == 0;  // only as root
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(bytes_of(folder / "a"), "new");
  EXPECT_EQ(bytes_of(folder / "secret"), "untouched");
  struct stat status{};
  ASSERT_EQ(stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, geteuid());
  Names left{".a.0.tmp", ".a.1.tmp", ".a.2.tmp"};
  if (foreign) left.push_back(".a.3.tmp");
  left.insert(left.end(), {"a", "secret"});
  EXPECT_EQ(folder.names(), left);
}

TEST(AtomicFile, AllNumbersTakenLeaveARandomName) {
  const TemporaryFolder folder;
  for (int k = 0; k < 64; ++k)
    std::filesystem::create_directory(folder / (".a." + std::to_string(k) + ".tmp"));
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(bytes_of(folder / "a"), "new");
  EXPECT_EQ(folder.names().size(), 65u);
}

TEST(AtomicFile, ATemporaryFileThatWasExchangedIsNotCommitted) {
  const TemporaryFolder folder;
  put(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write("new", 3);
  std::filesystem::remove(folder / ".a.0.tmp");
  put(folder / ".a.0.tmp", "exchanged");
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(bytes_of(folder / "a"), "old");
}

TEST(AtomicFile, WritersOfTheSameFileDoNotMixTheirBytes) {
  const TemporaryFolder folder;
  std::atomic<int> mixed{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      const std::string content(5000 + w, static_cast<char>('a' + w));
      for (int round = 0; round < 30; ++round) {
        AtomicFile file(folder / "a");
        for (std::size_t i = 0; i < content.size(); i += 1000) {
          file.write(content.data() + i, std::min<std::size_t>(1000, content.size() - i));
        }
        file.commit();
        const std::string seen = bytes_of(folder / "a");
        if (seen.size() != 5000u + (seen[0] - 'a') || seen.find_first_not_of(seen[0]) != std::string::npos)
          ++mixed;
      }
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, SignalsDuringTheWriteDoNotDisturbIt) {
  const TemporaryFolder folder;
  struct sigaction action{}, before{};
  static std::atomic<int> signals;
  signals = 0;
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART: system calls return EINTR
  sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::string content(8 << 20, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  for (int round = 0; round < 10; ++round) write_file_atomically(folder / "a", content);
  const std::string read = read_file(folder / "a");
  const itimerval off{};
  setitimer(ITIMER_REAL, &off, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(signals, 0);
  EXPECT_TRUE(read == content);
}

TEST(ReadFile, GivesAllBytes) {
  const TemporaryFolder folder;
  std::string content("\0\n\xFF middle \0", 12);
  put(folder / "a", content);
  EXPECT_EQ(read_file(folder / "a"), content);
}

TEST(ReadFile, NamesThePathAndTheReason) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kData, {(folder / "none").string(), "No such file or directory"},
               [&] { read_file(folder / "none"); });
  expect_error(ErrorKind::kData, {folder.path().string(), "Is a directory"},
               [&] { read_file(folder.path()); });
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::kData, {(folder / "pipe").string(), "not a regular file"},
               [&] { read_file(folder / "pipe"); });
}

}  // namespace
}  // namespace palimpsest::io
