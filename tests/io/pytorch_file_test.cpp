#include "palimpsest/io/pytorch_file.h"

#include "palimpsest/io/common/child_process.h"
#include "palimpsest/io/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

namespace palimpsest::io {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::put;
using testing::TemporaryFolder;

/// A variable of the environment for the time of a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (was_set_) {
      setenv(name_, before_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

/// Runs `command` by the shell; `output` receives the text that it printed.
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

TEST(PytorchFile, IsToldByItsFirstBytes) {
  const TemporaryFolder folder;
  put(folder / "zip", "PK\x03\x04 and so on");
  put(folder / "pickle", std::string("\x80\x02\x8a\x0al\xfc\x9c", 7));
  put(folder / "safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  put(folder / "empty", "");
  EXPECT_TRUE(is_pytorch_file(folder / "zip"));
  EXPECT_TRUE(is_pytorch_file(folder / "pickle"));
  EXPECT_FALSE(is_pytorch_file(folder / "safetensors"));
  EXPECT_FALSE(is_pytorch_file(folder / "empty"));
  expect_error(ErrorKind::kCheckpoint, {"none"}, [&] { is_pytorch_file(folder / "none"); });
}

TEST(PytorchFile, ASafetensorsFileNeedsNoPython) {
  const TemporaryFolder folder;
  const Variable no_python("PALIMPSEST_PYTHON", "/no/such/python");
  put(folder / "weights.pth", std::string("\x02\0\0\0\0\0\0\0{}", 10));  // whatever it is called
  EXPECT_TRUE(read_state_dict(folder / "weights.pth").tensors.empty());
  expect_error(ErrorKind::kCheckpoint, {"neither a safetensors file nor a file of torch.save"}, [&] {
    put(folder / "text.pth", "some text");
    read_state_dict(folder / "text.pth");
  });
}

TEST(PytorchFile, GivenAsSafetensorsIsNamedWithTheWayOut) {
  const TemporaryFolder folder;
  for (const std::string start : {"PK\x03\x04 a zip archive", "\x80\x02\x8a\x0a a pickle"}) {
    put(folder / "weights.safetensors", start);
    expect_error(ErrorKind::kCheckpoint,
                 {"weights.safetensors", "it is a file of torch.save (a zip archive or a pickle)",
                  "'palimpsest import'", "io::read_state_dict"},
                 [&] { read_safetensors(folder / "weights.safetensors"); });
  }
}

TEST(PytorchFile, WithoutAPythonTheWayOutIsNamed) {
  const TemporaryFolder folder;
  put(folder / "weights.pth", "PK\x03\x04");
  const auto read = [&] { read_pytorch_file(folder / "weights.pth"); };
  {
    const Variable none("PALIMPSEST_PYTHON", "/no/such/python");
    expect_error(ErrorKind::kUsage,
                 {"weights.pth", "'/no/such/python' cannot be started", "set PALIMPSEST_PYTHON"}, read);
  }
  put(folder / "python", "#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 3\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const Variable bare("PALIMPSEST_PYTHON", (folder / "python").string());
  expect_error(ErrorKind::kUsage, {"has no torch (No module named 'torch')", "set PALIMPSEST_PYTHON"}, read);
}

TEST(PytorchFile, WhatPythonWritesIsReadAndLeavesNoFileBehind) {
  const TemporaryFolder folder;
  const TemporaryFolder temporary;
  put(folder / "weights.pth", "PK\x03\x04");
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}     )";
  put(folder / "answer", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
                             std::string("\0\0\x80\x3f", 4));
  put(folder / "python", "#!/bin/sh\ncat " + (folder / "answer").string() + "\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const Variable python("PALIMPSEST_PYTHON", (folder / "python").string());
  const Variable place("TMPDIR", temporary.path().string());
  const auto contents = read_pytorch_file(folder / "weights.pth");
  ASSERT_EQ(contents.tensors.size(), 1u);
  EXPECT_EQ(contents.tensors[0].first, "a");
  EXPECT_EQ(contents.tensors[0].second.item<float>(), 1.0f);
  EXPECT_TRUE(temporary.names().empty());
}

TEST(PytorchFile, AFileThatPythonRefusesIsNamedWithTheReason) {
  const TemporaryFolder folder;
  put(folder / "weights.pth", "PK\x03\x04");
  put(folder / "python", "#!/bin/sh\necho 'it is truncated' >&2\nexit 4\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const Variable python("PALIMPSEST_PYTHON", (folder / "python").string());
  expect_error(ErrorKind::kCheckpoint, {"weights.pth", "it is truncated"},
               [&] { read_pytorch_file(folder / "weights.pth"); });
}

TEST(PytorchFile, ATemporaryFolderThatIsFullOrMissingIsNamed) {
  const TemporaryFolder folder;
  put(folder / "weights.pth", "PK\x03\x04");
  put(folder / "python", "#!/bin/sh\necho 'No space left on device' >&2\nexit 5\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const Variable python("PALIMPSEST_PYTHON", (folder / "python").string());
  const auto read = [&] { read_pytorch_file(folder / "weights.pth"); };
  expect_error(ErrorKind::kOutput, {"No space left on device", "set TMPDIR"}, read);
  const Variable place("TMPDIR", (folder / "none").string());
  expect_error(ErrorKind::kOutput, {(folder / "none").string(), "set TMPDIR"}, read);
}

}  // namespace
}  // namespace palimpsest::io
