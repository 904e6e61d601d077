#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/train/batch_source.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

namespace palimpsest::train {

/// The batches of a source, in its order, with images and targets on the device of the network;
/// TensorFormat::convert does the rest there. On the CPU these are the source's batches.
///
/// On a GPU prepare() takes the next batch while the GPU still works on the present one, and copies it from
/// pinned memory on a stream of its own. The host waits for neither copy nor step; the stream of the step
/// waits for the copy. libtorch's allocators keep the pinned memory until the copy has ended, and the memory
/// on the device until the step has. Memory on the device: one more batch as it travels, from prepare() to
/// the end of the present step.
class BatchFeed {
 public:
  /// `source` must outlive this object.
  BatchFeed(BatchSource& source, c10::Device device);

  /// Begins an epoch of the source. Drops a batch that is prepared.
  void start_epoch(int64_t epoch, int64_t first_batch);
  /// Returns the next batch, or nothing at the end of the epoch. Throws as the source does, in the place of
  /// the batch that caused the error.
  std::optional<data::Batch> next();
  /// Returns the bad examples of the batches that next() has returned since the last call.
  std::vector<data::BadExample> take_bad();
  /// Takes the batch that next() will return. Call it when the work on the present batch is queued, and only
  /// if next() will be called. Does nothing on the CPU, where it would delay the end of the step.
  void prepare();

 private:
  /// What the source returned, with its tensors on their way to the device.
  struct Prepared {
    std::optional<data::Batch> batch;
    std::vector<data::BadExample> bad;
    std::exception_ptr failure;
    std::optional<c10::Event> arrived;
  };
  Prepared take();

  BatchSource& source_;
  c10::Device device_;
  std::optional<c10::Stream> copies_;  // not on the CPU
  std::optional<Prepared> prepared_;
  std::vector<data::BadExample> bad_;
};

}  // namespace palimpsest::train
