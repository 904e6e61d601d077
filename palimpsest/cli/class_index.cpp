#include "palimpsest/cli/class_index.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace palimpsest::cli {
namespace {

constexpr const char* kFile = "class_presence.safetensors";

/// Shows how many labels are read: one line that changes on a terminal, else one line per tenth.
class IndexProgress {
 public:
  IndexProgress(int64_t images, bool quiet)
      : images_(images), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) != 0) {}

  void show(int64_t done) {
    const int64_t tenth = 10 * done / images_;
    if (quiet_ || (!terminal_ && tenth == shown_)) return;
    shown_ = tenth;
    const bool complete = done == images_;
    std::cerr << (terminal_ ? "\r" : "")
              << fmt::format("palimpsest: classes of the training images: {} of {} labels read", done,
                             images_)
              << (terminal_ && !complete ? "" : "\n") << std::flush;
  }

 private:
  int64_t images_;
  bool quiet_, terminal_;
  int64_t shown_ = -1;
};

void tell_bad(const std::vector<std::string>& bad) {
  std::cerr << "palimpsest: no class is drawn of " << counted(static_cast<int64_t>(bad.size()), "image")
            << " that cannot be used: " << printable(listed(bad)) << std::endl;
}

}  // namespace

data::ClassPresence class_index(const Options& options, const data::Dataset& dataset) {
  const std::filesystem::path folder =
      options.data.cache.empty() ? options.output.folder : options.data.cache;
  const bool stores = !folder.empty() && !dataset.identity().empty();
  const std::filesystem::path file = folder / kFile;
  const bool leads = !options.run.launch || options.run.launch->rank == 0;
  std::error_code ignored;
  if (stores && std::filesystem::exists(file, ignored)) {
    try {
      return data::ClassPresence::read(file, dataset);
    } catch (const Error& error) {
      if (leads && !options.output.quiet)
        std::cerr << "palimpsest: " << printable(error.what()) << "; it is built again" << std::endl;
    }
  }
  if (stores && leads) {
    std::filesystem::create_directories(folder, ignored);
    try {
      const io::AtomicFile can_be_written(file);  // before hours of reading
    } catch (const Error& error) {
      throw Error(error.kind(), std::string(error.what()) + "; the index of classes goes there (--cache)");
    }
  }
  IndexProgress progress(dataset.size(), options.output.quiet || !leads);
  std::vector<std::string> bad;
  auto presence = data::ClassPresence::build(
      dataset, std::max<int64_t>(1, options.data.workers), [&](int64_t done) { progress.show(done); },
      options.data.bad_images == "skip" ? &bad : nullptr);
  if (!bad.empty()) {
    if (leads && !options.output.quiet) tell_bad(bad);
    return presence;  // not stored, so that each run names them
  }
  if (stores && leads) presence.write(file, dataset);
  return presence;
}

}  // namespace palimpsest::cli
