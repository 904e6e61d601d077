#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/sampler.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::data {

struct Batch {
  /// f32 (N, 3, H, W), normalized; or bytes (data/dataset.h), which train::TensorFormat normalizes on the
  /// device.
  at::Tensor images;
  /// i64 (N, H, W) or (N); u8 (N, H, W) beside images of bytes; undefined for a data set without targets.
  at::Tensor targets;
  std::vector<std::string> names;    ///< N
  Normalization normalization = {};  ///< of images of bytes
};

/// The random numbers of a shuffle. They decide the order of the examples, so a run goes on with the stream
/// that it began with.
enum class ShuffleStream {
  kOwn,               ///< a stream that no example has
  kOfTheFirstExample  ///< that of example 0, as in the programs whose checkpoints name no order
};

/// What becomes of an example that cannot be read (Error of kind kData).
enum class BadExamples {
  kFail,  ///< next() throws the error
  /// For trainings: another example, drawn at random, takes its place. So batches keep their size.
  kReplace,
  kLeaveOut  ///< for evaluations: its batch is smaller
};

/// An example that could not be read.
struct BadExample {
  int64_t index;       ///< in the data set
  std::string reason;  ///< the error, which names the file
};

struct LoaderOptions {
  int64_t batch_size = 8;
  int64_t workers = 1;   ///< threads that read and transform; 0: the caller's thread
  int64_t prefetch = 2;  ///< batches made ahead
  uint64_t seed = 0;
  /// Shuffles each epoch. The order depends on (seed, epoch) only, not on the number of workers.
  bool shuffle = true;
  ShuffleStream shuffle_stream = ShuffleStream::kOwn;
  /// Chooses the examples of each epoch in place of the shuffle; null: none. Then the same example may come
  /// twice, and the example at position p of the epoch is made with Random::stream(seed, epoch, p).
  std::shared_ptr<const Sampler> sampler = nullptr;
  /// Leaves out an incomplete last batch.
  bool drop_last = true;
  /// The share of one process of a run: `rank` of `ranks`. The shares of all ranks together are the batches
  /// that one process reads, with the same bytes, whatever the number of ranks; batch_size is the number of
  /// images of all ranks together.
  int64_t rank = 0, ranks = 1;
  /// false, for a training: each rank reads its part of each batch. The parts are contiguous, in rank order,
  /// and the first (batch mod ranks) of them have one image more than the others. No part may be empty.
  /// true, for an evaluation: rank r reads the batches i with i mod ranks = r as a whole. It may have none.
  bool share_whole_batches = false;
  /// For evaluations: a batch whose images differ in size becomes one batch per size, in the order in which
  /// the sizes appear. false: such a batch is an error.
  bool split_by_size = false;
  BadExamples bad_examples = BadExamples::kFail;
  /// Each worker calls it once, before its first image; null: nothing. A program that measures its training steps passes
  /// memory::mark_background_thread.
  std::function<void()> begin_worker = nullptr;
};

/// Yields the batches of one epoch after another. next() rethrows a worker's error on the caller's thread, in
/// the place of the batch that caused it.
///
///   Loader loader(dataset, {.batch_size = 16, .workers = 2, .seed = 1});
///   for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///     loader.start_epoch(epoch);
///     while (auto batch = loader.next()) step(*batch);
///   }
///
/// Each batch is a function of (seed, epoch, position): the order is Dataset::shuffled, by default a
/// Fisher-Yates shuffle, drawn from Random::stream(seed, epoch, kShuffle), and example i is made with
/// Random::stream(seed, epoch, i). If example i is bad, that stream begins again and draws the index of the
/// example in its place, again if that one is bad too, at most 100 times. So the bytes do not depend on the
/// number of workers or of ranks, and an epoch that is resumed at batch k continues exactly as an unbroken
/// epoch.
///
/// Memory: at most `prefetch` batches that are ready or in progress, beside the batches that the caller
/// holds. A batch is stacked from its examples, so it takes twice its size for a moment. Each worker is one
/// thread: libtorch's operators do not start threads inside a worker. The caller may stop or destroy the
/// loader at any point of an epoch.
class Loader {
 public:
  /// Throws Error(kUsage) for options out of range, and if a rank would have no part of a batch;
  /// Error(kMemory) if the system does not start the workers.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the batches per epoch of all ranks before any is split by size; 0 if the data set is empty, or
  /// smaller than one batch with drop_last.
  int64_t batches() const;
  const Dataset& dataset() const;
  const LoaderOptions& options() const;
  /// Begins `epoch` at its batch `first_batch` (for resuming), counted over all ranks. Drops all prefetched
  /// batches. Throws Error(kUsage) if an epoch has no batch.
  void start_epoch(int64_t epoch, int64_t first_batch = 0);
  /// Returns this rank's share of the next batch, or nothing at the end of the epoch (and before the first
  /// start_epoch). After an error the next call continues with the following batch. Throws Error(kUsage) if
  /// the images of a batch differ in size and split_by_size is false.
  std::optional<Batch> next();
  /// Returns the bad examples of the batches that next() has returned since the last call, in their order;
  /// those of batches that were left out as a whole, too.
  std::vector<BadExample> take_bad();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace palimpsest::data
