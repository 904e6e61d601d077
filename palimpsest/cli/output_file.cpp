#include "palimpsest/cli/output_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/folder_lock.h"
#include "palimpsest/io/image.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/train/report.h"

#include <fmt/format.h>

#include <string>
#include <system_error>

namespace palimpsest::cli {

namespace fs = std::filesystem;

fs::path written_file(const fs::path& file) {
  std::error_code error;
  if (!fs::is_symlink(file, error)) return file;
  const fs::path target = fs::weakly_canonical(file, error);
  return error ? file : target;  // a loop of links: the write reports that
}

void check_replaceable(const fs::path& file, const char* flag, const Options& options) {
  const auto refuse_input = [&](const std::string& input, const char* what) {
    std::error_code ignored;
    if (!input.empty() && fs::equivalent(file, input, ignored))
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} must be another file than the input, got {}, which is {}", flag,
                              file.string(), what));
  };
  const bool imports = options.run.command == Command::kImport;
  refuse_input(options.run.checkpoint, imports ? "the file to import" : "the checkpoint");
  refuse_input(options.run.config, "the configuration");
  for (const fs::path& written : {file, written_file(file)})
    if (train::is_file_of_run(written))
      throw Error(
          ErrorKind::kUsage,
          fmt::format("{} must be no file of a training, got '{}', which the run in its folder needs: "
                      "name another file",
                      flag, file.string()));
  std::error_code missing;
  if (fs::is_directory(file, missing))
    throw Error(ErrorKind::kOutput,
                fmt::format("'{}' is a folder, and {} needs the name of a file", file.string(), flag));
  if (!options.run.overwrite && fs::exists(fs::symlink_status(file, missing)))
    throw Error(
        ErrorKind::kOutput,
        fmt::format("'{}' exists: replace it with --overwrite, or name another {}", file.string(), flag));
}

void check_output_file(const fs::path& file, const char* flag, const Options& options) {
  check_replaceable(file, flag, options);
  check_not_in_use(file);
}

void check_tensor_file(const fs::path& file, const char* flag, const Options& options) {
  check_output_file(file, flag, options);
  std::error_code missing;
  if (file.extension() == ".safetensors" || !fs::is_regular_file(file, missing)) return;
  try {
    io::read_safetensors_header(file);
  } catch (const std::exception&) {
    throw Error(ErrorKind::kUsage,
                fmt::format("--overwrite replaces an earlier file of tensors, and '{}' is none: name another "
                            "{}, or remove the file",
                            file.string(), flag));
  }
}

void check_picture_file(const fs::path& file, const Options& options) {
  check_output_file(file, "--output", options);
  std::error_code missing;
  if (fs::is_regular_file(file, missing) && io::png_software(file) != io::kPngSoftware)
    throw Error(ErrorKind::kUsage, "--overwrite replaces the pictures of an earlier predict or eval, and '" +
                                       file.string() +
                                       "' is none: name another --output, or remove the file");
}

void check_not_in_use(const fs::path& file) {
  const fs::path written = written_file(file);
  io::FolderLock::check_free(written.has_parent_path() ? written.parent_path() : ".");
}

}  // namespace palimpsest::cli
