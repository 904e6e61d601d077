#include "palimpsest/cli/step_probe.h"

#include "palimpsest/base/error.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/device_memory.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/loss_scale.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/rethrow.h"
#include "palimpsest/train/step_loss.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace palimpsest::cli {
namespace {

/// Sets a memory limit; the destructor restores the user's own (--memory-limit).
class ScopedLimit {
 public:
  ScopedLimit(int64_t bytes, const Options& options)
      : after_(options.train.memory_limit * (int64_t{1} << 20)) {
    memory::set_memory_limit(after_ > 0 ? std::min(bytes, after_) : bytes);
  }
  ~ScopedLimit() { memory::set_memory_limit(after_); }
  ScopedLimit(const ScopedLimit&) = delete;
  ScopedLimit& operator=(const ScopedLimit&) = delete;

 private:
  int64_t after_;
};

/// Returns a tensor of the counting allocator with `size` rows, which repeat the rows of `values`.
template <class T>
at::Tensor repeat_rows(const std::vector<T>& values, std::vector<int64_t> shape, int64_t size,
                       at::ScalarType type) {
  const auto rows = static_cast<size_t>(shape[0]), length = values.size() / rows;
  shape[0] = size;
  at::Tensor batch = at::empty(shape, type);
  T* to = batch.data_ptr<T>();
  for (size_t row = 0; row < static_cast<size_t>(size); ++row)
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row % rows * length), length, to + row * length);
  return batch;
}

}  // namespace

RepeatedBatch::RepeatedBatch(const Options& options, const Datasets& sets) {
  Options here = options;
  here.data.workers = 0;
  const auto loader = make_train_loader(here, sets);
  loader->start_epoch(0);
  const std::optional<data::Batch> batch = loader->next();
  TORCH_INTERNAL_ASSERT(batch, "make_datasets refuses a data set that is smaller than a batch");
  image_shape_ = batch->images.sizes().vec();
  target_shape_ = batch->targets.sizes().vec();
  const at::Tensor images = data::normalized(batch->images, batch->normalization).contiguous();
  const at::Tensor targets = batch->targets.to(at::kLong).contiguous();
  images_.assign(images.data_ptr<float>(), images.data_ptr<float>() + images.numel());
  targets_.assign(targets.data_ptr<int64_t>(), targets.data_ptr<int64_t>() + targets.numel());
}

data::Batch RepeatedBatch::make(int64_t size) const {
  return {repeat_rows(images_, image_shape_, size, at::kFloat),
          repeat_rows(targets_, target_shape_, size, at::kLong),
          {}};
}

StepProbe::StepProbe(const Options& options, const RepeatedBatch& source)
    : options_(options),
      source_(source),
      format_(make_format(options)),
      loss_(make_loss_options(options)),
      model_(make_model(options)),
      step_({format_.precision, train::parse_loss_scale(options.train.loss_scale)}) {
  format_.convert(*model_);
  model_->train();
  frozen_.emplace(*model_, train::FrozenOptions{options.train.freeze, options.train.freeze_norm});
  if (options.train.ema_decay > 0) average_.emplace(*model_, options.train.ema_decay);
  train::OptimizerOptions optimizer = make_optimizer_options(options);
  // Uses the rate of the first steps: with the full rate, training on a single batch might diverge.
  optimizer.lr *= 0.1;
  optimizer_ = train::make_optimizer(*model_, optimizer);
  step_.restore_buffers_of(*model_);
}

void StepProbe::until_taken(const std::function<bool()>& attempt) {
  while (!attempt())
    if (step_.is_hopeless())
      throw Error(
          ErrorKind::kDiverged,
          fmt::format("the gradients of {} steps in a row are not finite, with a loss scale of {:g} and {} "
                      "on one batch: no step of this training can be measured; give another loss_scale "
                      "(--loss-scale) or precision",
                      step_.skipped_in_a_row(), step_.loss_scale(), options_.train.precision));
}

bool StepProbe::step(data::Batch batch, const train::Step::RunOptions& run) {
  const int64_t parts = std::min(options_.train.accumulate, batch.images.size(0));
  const train::Network network(*model_);
  const train::LossOptions options = train::loss_for(batch.targets, loss_);
  train::StepLoss loss(network, std::move(batch), options, format_.precision, parts);
  train::Step::RunOptions releasing = run;
  releasing.entering = [&](train::Step::Phase phase) {
    if (run.entering) run.entering(phase);
    if (phase == train::Step::Phase::kBackward) loss.release_batch();
  };
  return step_.run_parts(
      *optimizer_.optimizer, parts, [&](int64_t part) { return loss.part(part); }, releasing);
}

double StepProbe::time_step() {
  double seconds = 0;
  until_taken([&] {
    data::Batch batch = source_.make(options_.train.batch);
    format_.convert(batch);
    memory::synchronize(format_.device);
    const auto start = std::chrono::steady_clock::now();
    const bool taken = step(std::move(batch));
    memory::synchronize(format_.device);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return taken;
  });
  return seconds;
}

StepMemory StepProbe::measure_step() {
  StepMemory memory;
  until_taken([&] {
    data::Batch batch = source_.make(options_.train.batch);
    format_.convert(batch);
    memory::Timeline timeline(format_.device);
    memory::Meter meter(format_.device);
    train::Step::RunOptions run;
    bool forward_done = false;  // of the first part: the gradients of a part live on in the next one
    run.entering = [&](train::Step::Phase phase) {
      if (phase == train::Step::Phase::kBackward && !std::exchange(forward_done, true)) meter.forward_done();
      timeline.mark(train::Step::name_of(phase));
    };
    const bool taken = step(std::move(batch), run);
    timeline.stop();
    memory = {meter.kept_bytes(), meter.peak_bytes(), timeline.samples(), timeline.marks()};
    return taken;
  });
  return memory;
}

bool StepProbe::fits(const RepeatedBatch& source, int64_t size, int64_t limit) {
  const bool on_cpu = format_.device.is_cpu();
  std::optional<ScopedLimit> scope;
  std::optional<memory::Meter> meter;  // the allocator of a GPU has no limit in bytes that is exact
  if (on_cpu)
    scope.emplace(limit, options_);
  else
    meter.emplace(format_.device);
  std::exception_ptr failure;
  // Runs on a separate thread: after an interrupted backward pass, libtorch's queue of the thread still holds
  // the branches that had not run, with their part of the graph, and the next trial would lack this memory.
  std::thread([&] {
    try {
      until_taken([&] {
        data::Batch batch = source.make(size);
        format_.convert(batch);
        return step(std::move(batch));
      });
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (!failure) return on_cpu || meter->peak_bytes() <= limit;
  if (!on_cpu)
    memory::release_cached(format_.device);  // in pieces that the next trial may not be able to use
  try {
    std::rethrow_exception(std::exchange(failure, nullptr));
  } catch (...) {
    try {
      train::rethrow_explained("the search for the largest batch");
    } catch (const Error& error) {
      // A batch of one may leave one value per channel, which cannot be normalized.
      const bool too_small = size == 1 && error.kind() == ErrorKind::kUsage;
      if (error.kind() != ErrorKind::kMemory && !too_small) throw;
    } catch (const c10::Error& error) {
      // Some of libtorch's kernels for GPUs count the values of a tensor in 32 bits.
      if (on_cpu || std::string_view(error.what()).find("32-bit index") == std::string_view::npos) throw;
    }
    return false;
  }
}

int64_t largest_fitting(int64_t start, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, bad = start;
  while (fits(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace palimpsest::cli
