#pragma once

#include "palimpsest/data/dataset.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::data {

struct Batch {
  at::Tensor images;               ///< f32 (N, 3, H, W)
  at::Tensor targets;              ///< i64 (N, H, W) or (N)
  std::vector<std::string> names;  ///< N
};

struct LoaderOptions {
  int64_t batch_size = 8;
  int64_t workers = 1;   ///< threads that read and transform; 0: the caller's thread
  int64_t prefetch = 2;  ///< batches made ahead
  uint64_t seed = 0;
  bool shuffle = true;    ///< an order that is a function of (seed, epoch) only, whatever the number of workers
  bool drop_last = true;  ///< leave out an incomplete last batch
};

/// Yields the batches of one epoch after another. A worker's error is rethrown by next() on the caller's thread, at
/// the batch it belongs to.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t batches() const;  ///< per epoch
  const Dataset& dataset() const;
  const LoaderOptions& options() const;
  /// Begins `epoch` at its batch `first_batch` (for resuming); drops what was prefetched.
  void start_epoch(int64_t epoch, int64_t first_batch = 0);
  /// The next batch, or nothing at the end of the epoch.
  std::optional<Batch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace palimpsest::data
