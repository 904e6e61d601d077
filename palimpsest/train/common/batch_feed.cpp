#include "palimpsest/train/common/batch_feed.h"

#include "palimpsest/train/common/send.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace palimpsest::train {

BatchFeed::BatchFeed(BatchSource& source, c10::Device device) : source_(source), device_(device) {
  if (!device.is_cpu())
    copies_ =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

void BatchFeed::start_epoch(int64_t epoch, int64_t first_batch) {
  prepared_.reset();
  source_.start_epoch(epoch, first_batch);
}

BatchFeed::Prepared BatchFeed::take() {
  Prepared taken;
  try {
    taken.batch = source_.next();
    taken.bad = source_.take_bad();
    if (!taken.batch || !copies_) return taken;
    const c10::StreamGuard guard(*copies_);
    taken.batch->images = send(taken.batch->images, device_);
    taken.batch->targets = send(taken.batch->targets, device_);
    taken.arrived.emplace(device_.type());
    taken.arrived->record(*copies_);
  } catch (...) {
    taken.failure = std::current_exception();
  }
  return taken;
}

void BatchFeed::prepare() {
  if (copies_ && !prepared_) prepared_ = take();
}

std::optional<data::Batch> BatchFeed::next() {
  Prepared taken = prepared_ ? *std::exchange(prepared_, std::nullopt) : take();
  bad_.insert(bad_.end(), taken.bad.begin(), taken.bad.end());
  if (taken.failure) std::rethrow_exception(taken.failure);
  if (taken.arrived) {
    const c10::Stream computes = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    taken.arrived->block(computes);
    // The memory was allocated for the stream of the copies: the allocator must know who reads it.
    for (const at::Tensor* tensor : {&taken.batch->images, &taken.batch->targets})
      if (tensor->defined()) tensor->record_stream(computes);
  }
  return std::move(taken.batch);
}

std::vector<data::BadExample> BatchFeed::take_bad() {
  return std::exchange(bad_, {});
}

}  // namespace palimpsest::train
