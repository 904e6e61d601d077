#pragma once

#include "palimpsest/data/loader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// The source of the batches of a training: LoaderBatches, or a class of the user's.
///
/// A resumed run gives the bytes of an unbroken run only if each batch is a function of (seed, epoch,
/// position).
///
/// In a run of several processes each one has a source of its own, which yields its share (share()).
/// batches(), batch_size() and `first_batch` count the batches of all processes together and are the same on
/// all of them. In a training each process has a part of each batch. In an evaluation the processes share out
/// the batches, and one may have none.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Returns the batches per epoch, at least 1.
  virtual int64_t batches() const = 0;
  /// Begins `epoch` at its batch `first_batch`.
  virtual void start_epoch(int64_t epoch, int64_t first_batch) = 0;
  /// Returns the next batch, or nothing at the end of the epoch.
  virtual std::optional<data::Batch> next() = 0;
  /// Returns the examples that could not be read, and that were replaced or left out, since the last call
  /// (data/loader.h).
  virtual std::vector<data::BadExample> take_bad() { return {}; }

  /// Return the images per batch, and the seed of the order. A checkpoint holds both; a resumed run must have
  /// the same values.
  virtual int64_t batch_size() const = 0;
  virtual uint64_t seed() const = 0;

  /// Return the name of the order that the examples are shuffled in, and the identity of the examples. A
  /// checkpoint holds both; a resumed run must have the same order, and the same identity unless one is "".
  virtual std::string order() const { return ""; }
  virtual std::string identity() const { return ""; }

  /// Returns the images of an epoch, or a few more.
  virtual int64_t images() const { return batches() * batch_size(); }

  /// Process number `rank` of `ranks`.
  struct Share {
    int64_t rank = 0, ranks = 1;
    bool operator==(const Share&) const = default;
  };
  /// Returns whose share the source yields: by default all of it, for a run of one process.
  virtual Share share() const { return {}; }
};

/// The batches of a loader, which must outlive this object.
class LoaderBatches : public BatchSource {
 public:
  explicit LoaderBatches(data::Loader& loader) : loader_(loader) {}

  int64_t batches() const override { return loader_.batches(); }
  void start_epoch(int64_t epoch, int64_t first_batch) override { loader_.start_epoch(epoch, first_batch); }
  std::optional<data::Batch> next() override { return loader_.next(); }
  std::vector<data::BadExample> take_bad() override { return loader_.take_bad(); }
  int64_t batch_size() const override { return loader_.options().batch_size; }
  int64_t images() const override { return loader_.dataset().size(); }
  uint64_t seed() const override { return loader_.options().seed; }
  /// Returns the name of the sampler, or "own_stream", or "" for a loader that does not shuffle or that shuffles
  /// as older programs did.
  std::string order() const override {
    const data::LoaderOptions& options = loader_.options();
    if (options.sampler) return options.sampler->name();
    return options.shuffle && options.shuffle_stream == data::ShuffleStream::kOwn ? "own_stream" : "";
  }
  std::string identity() const override { return loader_.dataset().identity(); }
  Share share() const override { return {loader_.options().rank, loader_.options().ranks}; }

 private:
  data::Loader& loader_;
};

}  // namespace palimpsest::train
