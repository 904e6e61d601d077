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
  at::Tensor targets;              ///< i64 (N, H, W) or (N); undefined for a data set without targets
  std::vector<std::string> names;  ///< N
};

struct LoaderOptions {
  int64_t batch_size = 8;
  int64_t workers = 1;   ///< threads that read and transform; 0: the caller's thread
  int64_t prefetch = 2;  ///< batches made ahead
  uint64_t seed = 0;
  bool shuffle = true;  ///< an order that is a function of (seed, epoch) only, whatever the number of workers
  bool drop_last = true;  ///< leave out an incomplete last batch
};

/// Yields the batches of one epoch after another. A worker's error is rethrown by next() on the caller's
/// thread, at the batch it belongs to.
///
///   Loader loader(dataset, {.batch_size = 16, .workers = 2, .seed = 1});
///   for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///     loader.start_epoch(epoch);
///     while (auto batch = loader.next()) step(*batch);
///   }
///
/// Everything is a function of (seed, epoch, position): the order is a Fisher-Yates shuffle drawn from
/// Random::stream(seed, epoch), and example i is made with Random::stream(seed, epoch, i). So the bytes do
/// not depend on the number of workers, and an epoch resumed at batch k goes on exactly as the unbroken one.
///
/// Memory: at most `prefetch` batches made or in the making, beside those the caller holds; a batch is
/// stacked from its examples, which doubles the one being stacked for a moment. Workers run one thread each:
/// libtorch's operators do not fan out inside them. The caller may stop or destroy the loader at any point of
/// an epoch.
class Loader {
 public:
  /// Throws Error(kUsage) for options out of range.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t batches() const;  ///< per epoch; 0 when the data set is empty, or drop_last leaves nothing of it
  const Dataset& dataset() const;
  const LoaderOptions& options() const;
  /// Begins `epoch` at its batch `first_batch` (for resuming); drops what was prefetched.
  /// Throws Error(kUsage) when an epoch has no batch.
  void start_epoch(int64_t epoch, int64_t first_batch = 0);
  /// The next batch, or nothing at the end of the epoch (and before the first start_epoch). After an error
  /// the next call goes on with the batch behind. Images of different size are Error(kUsage): they cannot be
  /// stacked.
  std::optional<Batch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace palimpsest::data
