#include "palimpsest/cli/output_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/folder_lock.h"

#include <string>
#include <system_error>

namespace palimpsest::cli {

namespace fs = std::filesystem;

void check_output_file(const fs::path& file, const char* flag, const Options& options) {
  std::error_code missing;
  if (!options.run.overwrite && fs::exists(fs::symlink_status(file, missing)))
    throw Error(ErrorKind::kOutput,
                "'" + file.string() + "' exists: replace it with --overwrite, or name another " + flag);
  check_not_in_use(file);
}

void check_not_in_use(const fs::path& file) {
  std::error_code error;
  fs::path target = file;
  if (fs::is_symlink(file, error)) target = fs::weakly_canonical(file, error);
  if (error) target = file;  // a loop of links: the write reports that
  io::FolderLock::check_free(target.has_parent_path() ? target.parent_path() : ".");
}

}  // namespace palimpsest::cli
