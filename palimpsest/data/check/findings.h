#pragma once

#include "palimpsest/base/error.h"
#include "palimpsest/data/check.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::data::layouts {
struct LabelIds;  // data/layouts/labeled_files.h
}

// What `data check` finds in the examples of a split.
namespace palimpsest::data::checks {

/// What one thread found, or all of them together.
struct Findings {
  std::vector<std::pair<int64_t, std::string>> faults;  ///< position of the example, text
  int64_t unreadable = 0;
  std::array<int64_t, 2> smallest{}, largest{};  ///< width and height
  std::array<int64_t, 256> ids{};                ///< pixels of each id
  std::vector<int64_t> classes;                  ///< examples of each class

  void add_size(const std::array<int64_t, 2>& size);
  void add_class(int64_t id, int64_t count = 1);
  /// Returns what `read` returns; notes its Error as a fault and as an unreadable file, and returns nothing.
  template <class Read>
  at::Tensor try_read(int64_t position, const Read& read) {
    try {
      return read();
    } catch (const Error& error) {
      faults.emplace_back(position, error.what());
      ++unreadable;
      return {};
    }
  }
  /// Notes the size of an image, u8 (H, W, 3), and the ids of its label, u8 (H, W), which become train ids.
  /// Either may be undefined. The names are for faults: a label of another size, and ids without a class.
  /// `options`: as the images and labels were read.
  void examine(int64_t position, const at::Tensor& image, const std::string& image_name, at::Tensor label,
               const std::string& label_name, const layouts::LabelIds* label_ids,
               const CheckOptions& options);
  void add(const Findings& other);
};

/// Calls `examine` for each of the examples 0 to count - 1, in options.threads threads that take them in
/// order, and options.progress. The result does not depend on the number of threads: faults are sorted by
/// position. Throws Error(kMemory) if the system does not start the threads.
Findings examine_all(int64_t count, const std::string& split, const CheckOptions& options,
                     const std::function<void(int64_t, Findings&)>& examine);

/// Adds the faults, unreadable files and sizes to the check of a split.
void add_findings(SplitCheck& check, const Findings& found);
/// Adds the pixels of each class, of void, and of each id without a class.
void add_pixels(SplitCheck& check, const Findings& found, const layouts::LabelIds& ids, std::size_t classes);

}  // namespace palimpsest::data::checks
