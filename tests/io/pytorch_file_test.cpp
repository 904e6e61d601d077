#include "palimpsest/io/pytorch_file.h"

#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <filesystem>
#include <string>

namespace palimpsest::io {
namespace {

using testing::EnvironmentVariable;
using testing::expect_error;
using testing::put;
using testing::TemporaryFolder;

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
    const EnvironmentVariable none("PALIMPSEST_PYTHON", "/no/such/python");
    expect_error(ErrorKind::kUsage,
                 {"weights.pth", "'/no/such/python' cannot be started", "set PALIMPSEST_PYTHON"}, read);
  }
  put(folder / "python", "#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 3\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const EnvironmentVariable bare("PALIMPSEST_PYTHON", (folder / "python").string());
  expect_error(ErrorKind::kUsage, {"has no torch (No module named 'torch')", "set PALIMPSEST_PYTHON"}, read);
}

TEST(PytorchFile, APythonWithAnOldTorchIsNotSafe) {
  const TemporaryFolder folder;
  put(folder / "weights.pth", "PK\x03\x04");
  put(folder / "python",
      "#!/bin/sh\n[ \"$1\" = -I ] || exit 9\necho 'torch 2.5.1 can be made to run code' >&2\nexit 6\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const EnvironmentVariable old("PALIMPSEST_PYTHON", (folder / "python").string());
  expect_error(ErrorKind::kUsage, {"is not safe: torch 2.5.1", "set PALIMPSEST_PYTHON"},
               [&] { read_pytorch_file(folder / "weights.pth"); });
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
  const EnvironmentVariable python("PALIMPSEST_PYTHON", (folder / "python").string());
  const EnvironmentVariable place("TMPDIR", temporary.path().string());
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
  const EnvironmentVariable python("PALIMPSEST_PYTHON", (folder / "python").string());
  expect_error(ErrorKind::kCheckpoint, {"weights.pth", "it is truncated"},
               [&] { read_pytorch_file(folder / "weights.pth"); });
}

TEST(PytorchFile, ATemporaryFolderThatIsFullOrMissingIsNamed) {
  const TemporaryFolder folder;
  put(folder / "weights.pth", "PK\x03\x04");
  put(folder / "python", "#!/bin/sh\necho 'No space left on device' >&2\nexit 5\n");
  std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
  const EnvironmentVariable python("PALIMPSEST_PYTHON", (folder / "python").string());
  const auto read = [&] { read_pytorch_file(folder / "weights.pth"); };
  expect_error(ErrorKind::kOutput, {"No space left on device", "set TMPDIR"}, read);
  const EnvironmentVariable place("TMPDIR", (folder / "none").string());
  expect_error(ErrorKind::kOutput, {(folder / "none").string(), "set TMPDIR"}, read);
}

}  // namespace
}  // namespace palimpsest::io
