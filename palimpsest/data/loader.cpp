#include "palimpsest/data/loader.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/common/threads.h"

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>

#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace palimpsest::data {
namespace {

/// One batch in progress. It holds everything that its examples need, so that a worker can finish an example
/// after the loader began another epoch; the result is then dropped.
struct Job {
  int64_t epoch = 0;
  std::vector<Draw> draws;                     // of the data set
  int64_t first = 0;                           // position of the first one in the epoch
  std::vector<Sample> samples;                 // one per draw; without an image if it is left out
  std::vector<std::optional<BadExample>> bad;  // one per draw
  int64_t claimed = 0;                         // examples that workers have begun
  int64_t finished = 0;
  int64_t failed_at = -1;  // lowest failed position: the same error for any number of workers
  std::exception_ptr failure;
  std::deque<Batch> batches;  // one, or one per size of image
  bool done = false;
};

/// The shuffle's place among the streams of an epoch: no example has this index.
constexpr uint64_t kShuffle = ~uint64_t{0};

/// If half of the examples are bad, one in 2^100 finds no other in its place.
constexpr int kMostReplacements = 100;

/// Positions from `begin` up to `end`.
struct Span {
  int64_t begin, end;
};

/// Returns the part of a rank of `count` examples.
Span part_of(int64_t count, int64_t rank, int64_t ranks) {
  const int64_t least = count / ranks, larger = count % ranks;  // parts of one example more
  const int64_t begin = rank * least + std::min(rank, larger);
  return {begin, begin + least + (rank < larger ? 1 : 0)};
}

bool same_size(const Sample& a, const Sample& b) {
  return a.image.sizes() == b.image.sizes();
}

void refuse_sizes(const std::vector<Sample>& samples) {
  const Sample& first = samples.front();
  for (const Sample& sample : samples) {
    if (same_size(sample, first)) continue;
    std::ostringstream message;
    message << first.name << " is " << first.image.size(2) << "x" << first.image.size(1) << " pixels and "
            << sample.name << " " << sample.image.size(2) << "x" << sample.image.size(1)
            << ": images of one batch must have one size; set a crop, or use a batch of 1";
    throw Error(ErrorKind::kUsage, message.str());
  }
}

/// Stacks samples whose images have one size.
Batch stack(const std::vector<Sample>& samples) {
  Batch batch;
  std::vector<at::Tensor> images, targets;
  for (const Sample& sample : samples) {
    images.push_back(sample.image);
    if (sample.target.defined()) targets.push_back(sample.target);
    batch.names.push_back(sample.name);
  }
  batch.images = at::stack(images);
  batch.normalization = samples.front().normalization;
  if (!targets.empty()) batch.targets = at::stack(targets);
  return batch;
}

/// Takes the samples of one batch and returns it, or one batch per size of image. Leaves out samples without
/// an image.
std::deque<Batch> stack_by_size(std::vector<Sample>&& samples, bool split) {
  std::erase_if(samples, [](const Sample& sample) { return !sample.image.defined(); });
  if (!split && !samples.empty()) refuse_sizes(samples);
  std::deque<Batch> batches;
  while (!samples.empty()) {
    const Sample first = samples.front();
    const auto others = std::stable_partition(samples.begin(), samples.end(),
                                              [&](const Sample& sample) { return same_size(sample, first); });
    batches.push_back(stack({samples.begin(), others}));
    samples.erase(samples.begin(), others);
  }
  return batches;
}

/// Throws unless each rank has a part of each batch.
void check_parts(int64_t size, const LoaderOptions& options) {
  const int64_t last = options.drop_last ? 0 : size % options.batch_size;
  const bool lacks = options.batch_size < options.ranks;
  if (!lacks && (last == 0 || last >= options.ranks)) return;
  throw Error(ErrorKind::kUsage, std::string("loader: ") + (lacks ? "a batch" : "the last batch") +
                                     " must have at least one image for each of the " +
                                     std::to_string(options.ranks) + " processes, got " +
                                     std::to_string(lacks ? options.batch_size : last) +
                                     ": use fewer processes, or " +
                                     (lacks ? "a larger batch" : "leave out the incomplete batch"));
}

}  // namespace

struct Loader::State {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  int64_t batches = 0;

  // Used by the caller's thread only.
  int64_t epoch = 0, next_batch = 0;  // the next batch to become a job
  std::vector<Draw> order;            // of this epoch; empty before the first epoch
  std::deque<Batch> ready;            // the rest of a batch that was split by size
  std::vector<BadExample> bad;        // of the batches that were returned

  std::mutex mutex;                        // guards the members below and the counters of each job
  std::condition_variable work, finished;  // a job or the end arrived; a job is done
  std::deque<std::shared_ptr<Job>> jobs;   // in the order of the epoch
  bool stopping = false;
  std::vector<std::jthread> threads;

  void shuffle() {
    order.clear();
    if (options.sampler) {
      order = options.sampler->epoch(options.seed, epoch);
      if (static_cast<int64_t>(order.size()) != dataset->size())
        throw std::logic_error("a sampler must draw as many examples as the data set has");
      return;
    }
    if (!options.shuffle) {
      for (int64_t i = 0; i < dataset->size(); ++i) order.push_back({i});
      return;
    }
    const bool own = options.shuffle_stream == ShuffleStream::kOwn;
    Random random = Random::stream(options.seed, static_cast<uint64_t>(epoch), own ? kShuffle : 0);
    for (const int64_t index : dataset->shuffled(random, options.batch_size)) order.push_back({index});
  }

  // Returns the next batch of the epoch as a job, or no job at the end of the epoch.
  std::shared_ptr<Job> make_job() {
    if (options.share_whole_batches)  // go to this rank's next one
      next_batch += (options.rank - next_batch % options.ranks + options.ranks) % options.ranks;
    if (order.empty() || next_batch >= batches) return nullptr;
    auto job = std::make_shared<Job>();
    job->epoch = epoch;
    const int64_t begin = next_batch++ * options.batch_size;
    const int64_t count = std::min(options.batch_size, static_cast<int64_t>(order.size()) - begin);
    const Span part =
        options.share_whole_batches ? Span{0, count} : part_of(count, options.rank, options.ranks);
    job->first = begin + part.begin;
    job->draws.assign(order.begin() + job->first, order.begin() + begin + part.end);
    job->samples.resize(job->draws.size());
    job->bad.resize(job->draws.size());
    return job;
  }

  // Makes the sample at a position of the job, and notes there if its example is bad.
  void make_sample(Job& job, int64_t position) const {
    const Draw draw = job.draws[position];
    const int64_t own = options.sampler ? job.first + position : draw.index;
    const auto stream = [&] {
      return Random::stream(options.seed, static_cast<uint64_t>(job.epoch), static_cast<uint64_t>(own));
    };
    const auto get = [&](int64_t index, Random& random) {
      return draw.class_id < 0 ? dataset->get(index, random)
                               : dataset->get_with_class(index, draw.class_id, random);
    };
    try {
      Random random = stream();
      job.samples[position] = get(draw.index, random);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData || options.bad_examples == BadExamples::kFail) throw;
      job.bad[position] = BadExample{draw.index, error.what()};
    }
    if (options.bad_examples == BadExamples::kLeaveOut) return;
    Random random = stream();
    for (int attempt = 1;; ++attempt) {
      const int64_t other = random.below(dataset->size());
      try {
        job.samples[position] = get(other, random);
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kData) throw;
        if (attempt == kMostReplacements)
          throw Error(ErrorKind::kData,
                      std::to_string(kMostReplacements + 1) +
                          " examples in a row could not be read, too many to be left out; " +
                          "the last one: " + error.what());
      }
    }
  }

  void make_batches_here(Job& job) const {
    for (std::size_t i = 0; i < job.draws.size(); ++i) make_sample(job, static_cast<int64_t>(i));
    job.batches = stack_by_size(std::move(job.samples), options.split_by_size);
  }

  // Returns the next finished job, or none at the end of the epoch.
  std::shared_ptr<Job> next_job() {
    if (threads.empty()) {
      auto job = make_job();
      if (job) make_batches_here(*job);
      return job;
    }
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex);
      if (jobs.empty()) return nullptr;
      job = jobs.front();
      finished.wait(lock, [&] { return job->done; });
      jobs.pop_front();
      fill();
    }
    work.notify_all();
    return job;
  }

  // Returns the oldest job with an example that no worker has begun.
  std::shared_ptr<Job> claimable() const {
    for (const auto& job : jobs) {
      if (job->claimed < static_cast<int64_t>(job->draws.size())) return job;
    }
    return nullptr;
  }

  void run_worker() {
    if (options.begin_worker) options.begin_worker();
    // At a thread's first parallel call libtorch overwrites the thread's number of OpenMP threads. The flag
    // for the first call is a thread-local variable of an inline function; libtorch and this program have one
    // each. So call both before setting the number.
    at::get_num_threads();
    at::internal::lazy_init_num_threads();
    omp_set_num_threads(1);
    std::unique_lock lock(mutex);
    while (true) {
      std::shared_ptr<Job> job;
      work.wait(lock, [&] { return stopping || (job = claimable()); });
      if (stopping) return;
      const int64_t position = job->claimed++;
      lock.unlock();
      std::exception_ptr failure;
      try {
        make_sample(*job, position);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && (job->failed_at < 0 || position < job->failed_at)) {
        job->failed_at = position;
        job->failure = failure;
      }
      if (++job->finished < static_cast<int64_t>(job->draws.size())) continue;
      // The last worker stacks the batch; other workers and the caller continue.
      if (!job->failure && std::find(jobs.begin(), jobs.end(), job) != jobs.end()) {
        lock.unlock();
        try {
          job->batches = stack_by_size(std::move(job->samples), options.split_by_size);
        } catch (...) {
          job->failure = std::current_exception();
        }
        job->samples.clear();
        lock.lock();
      }
      job->done = true;
      finished.notify_all();
    }
  }

  void fill() {
    while (static_cast<int64_t>(jobs.size()) < options.prefetch) {
      auto job = make_job();
      if (!job) return;
      jobs.push_back(std::move(job));
    }
  }

  void stop_workers() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : state_(std::make_unique<State>()) {
  if (!dataset) throw std::invalid_argument("Loader needs a data set, got none");
  const auto at_least = [](const char* what, int64_t value, int64_t least) {
    if (value >= least) return;
    throw Error(ErrorKind::kUsage, std::string("loader: ") + what + " must be at least " +
                                       std::to_string(least) + ", got " + std::to_string(value));
  };
  at_least("the batch size", options.batch_size, 1);
  at_least("the number of workers", options.workers, 0);
  at_least("the number of prefetched batches", options.prefetch, 1);
  at_least("the number of ranks", options.ranks, 1);
  if (options.rank < 0 || options.rank >= options.ranks)
    throw Error(ErrorKind::kUsage, "loader: the rank must be from 0 to " + std::to_string(options.ranks - 1) +
                                       ", got " + std::to_string(options.rank));
  const int64_t size = dataset->size();
  if (!options.share_whole_batches) check_parts(size, options);
  state_->dataset = std::move(dataset);
  state_->options = std::move(options);
  const LoaderOptions& own = state_->options;
  const bool incomplete = size % own.batch_size != 0;
  state_->batches = size / own.batch_size + (incomplete && !own.drop_last ? 1 : 0);
  state_->threads = start_threads(
      own.workers, "the loader", "--workers", [state = state_.get()] { state->run_worker(); },
      [this] { state_->stop_workers(); });
}

Loader::~Loader() {
  state_->stop_workers();  // its threads, its last members, are joined before anything that they use ends
}

int64_t Loader::batches() const {
  return state_->batches;
}
const Dataset& Loader::dataset() const {
  return *state_->dataset;
}
const LoaderOptions& Loader::options() const {
  return state_->options;
}

void Loader::start_epoch(int64_t epoch, int64_t first_batch) {
  State& state = *state_;
  if (state.batches == 0) {
    throw Error(ErrorKind::kUsage, "the data set has " + std::to_string(state.dataset->size()) +
                                       " examples, fewer than one batch of " +
                                       std::to_string(state.options.batch_size) +
                                       ": use a smaller batch, or keep the incomplete last batch");
  }
  if (epoch < 0 || first_batch < 0 || first_batch > state.batches) {
    throw std::invalid_argument("Loader::start_epoch needs an epoch >= 0 and a batch of 0 to " +
                                std::to_string(state.batches) + ", got " + std::to_string(epoch) + " and " +
                                std::to_string(first_batch));
  }
  {
    const std::lock_guard lock(state.mutex);
    state.ready.clear();
    state.jobs.clear();  // workers finish their current example, which is dropped
    state.epoch = epoch;
    state.next_batch = first_batch;
    state.shuffle();
    if (!state.threads.empty()) state.fill();
  }
  state.work.notify_all();
}

std::optional<Batch> Loader::next() {
  State& state = *state_;
  while (state.ready.empty()) {  // again for a batch of bad examples alone
    const auto job = state.next_job();
    if (!job) return std::nullopt;
    if (job->failure) std::rethrow_exception(job->failure);
    for (auto& bad : job->bad)
      if (bad) state.bad.push_back(std::move(*bad));
    state.ready = std::move(job->batches);
  }
  Batch batch = std::move(state.ready.front());
  state.ready.pop_front();
  return batch;
}

std::vector<BadExample> Loader::take_bad() {
  return std::exchange(state_->bad, {});
}

}  // namespace palimpsest::data
