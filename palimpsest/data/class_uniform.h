#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/sampler.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data {

/// The pixels of each class in each example of a data set.
class ClassPresence {
 public:
  /// Reads all labels with `threads` threads, at least 1. `progress` is called on the caller's thread a few
  /// times per second with the number of labels that are read. Throws the error of the first bad label,
  /// Error(kUsage) if the data set does not know its classes, and Error(kMemory) if the system does not start
  /// the threads. With `bad`, a label that cannot be read (Error of kind kData) has no class, and its error
  /// is appended to `bad`.
  static ClassPresence build(const Dataset& dataset, int64_t threads,
                             const std::function<void(int64_t)>& progress = nullptr,
                             std::vector<std::string>* bad = nullptr);
  /// Reads a file of write(). Throws Error(kData) if it is missing, damaged, of other data, or of another
  /// ignore id.
  static ClassPresence read(const std::filesystem::path& path, const Dataset& dataset);
  /// Writes a safetensors file, atomically: `image`, `class` (i32) and `pixels` (i64), one entry per class
  /// that an image has; the metadata hold the identity of the data, the names of the classes and the ignore
  /// id.
  void write(const std::filesystem::path& path, const Dataset& dataset) const;

  /// One class in one image.
  struct Entry {
    int64_t image, class_id, pixels;
    bool operator==(const Entry&) const = default;
  };
  int64_t images() const { return images_; }
  /// Returns the entries, sorted by image, then by class.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  int64_t images_ = 0;
  std::vector<Entry> entries_;
};

/// Returns the sampler that draws each class equally often: the numbers of draws of two classes that occur in
/// the data differ by at most one per epoch. The images of a class are drawn in random order, and again only
/// after all others of this class. Example and class of a draw are for Dataset::get_with_class.
/// Throws Error(kData) if no image has a class.
/// Source: Rota Bulò, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
std::shared_ptr<const Sampler> class_uniform_sampler(const ClassPresence& presence);

}  // namespace palimpsest::data
