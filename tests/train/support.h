#pragma once

#include "palimpsest/base/error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train::testing {

// What two computations of one quantity may differ by, as a share of its norm: rounding, a few hundred sums
// deep.
constexpr double kTolerance64 = 1e-12;
constexpr double kTolerance32 = 1e-5;
constexpr double kNumericGradient = 1e-7;  ///< central differences in f64 with a step of 1e-5

inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble);
  const double norm = w.norm().item<double>();
  return (got.to(at::kDouble) - w).norm().item<double>() / (norm > 0 ? norm : 1);
}

/// The error that `body` throws; fails the test, and gives nothing, when it throws none or another type.
inline std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos)
        << "an error is one line: " << error.what();
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a palimpsest::Error: " << error.what();
  }
  return std::nullopt;
}

/// Expects Error(kind) whose message holds all of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& body) {
  const auto error = error_of(body);
  if (!error) return;
  EXPECT_EQ(error->kind(), kind) << error->what();
  for (const auto& part : parts)
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos)
        << "no '" << part << "' in: " << error->what();
}

/// An empty folder that goes with the object; in memory where there is such a file system, because the tests
/// write hundreds of checkpoints, each synced, which takes a second and a half apiece on a busy disk.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const std::filesystem::path memory = "/dev/shm";
    const auto parent =
        std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    std::string name = (parent / "palimpsest_train_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// While alive no file of this process can grow beyond `bytes`: what a full disk looks like to the program.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

}  // namespace palimpsest::train::testing
