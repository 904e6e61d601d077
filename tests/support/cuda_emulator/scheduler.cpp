#include "palimpsest/base/random.h"
#include "tests/support/cuda_emulator/cuda_platform.cuh"
#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/cuda_emulator/fiber.h"
#include "tests/support/cuda_emulator/sanitizers.h"
#include "tests/support/cuda_emulator/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

// Set before a fiber is resumed.
palimpsest::cuda_emulator::Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace palimpsest::cuda_emulator {
namespace {

constexpr unsigned kWarp = 32;

std::string to_string(Index3 i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

std::string to_string(const Place& place) {
  const std::string file = place.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(place.line());
}

/// Threads that wait for one another. ThreadSanitizer orders what each did before the meeting before what any
/// does after it. Two objects take turns, since the first thread to leave may arrive again before the last
/// has left.
struct Meeting {
  unsigned arrived = 0;
  unsigned turn = 0;
  Place place;
  char order[2] = {};
};

enum class State : char { kReady, kAtWarp, kAtBlock, kAtCluster, kDone };

struct Warp {
  Meeting meeting;
  uint64_t values[2][kWarp] = {};
};

struct Block {
  Index3 index;
  unsigned rank = 0;  // within the cluster
  unsigned done = 0;  // threads that have left the kernel
  SharedMemory* shared = nullptr;
  Meeting meeting;
  std::vector<Warp> warps;
};

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  int group;
};

struct Thread {
  Fiber* fiber = nullptr;
  Block* block = nullptr;
  unsigned index = 0;
  State state = State::kReady;
  Place place;
  std::vector<Copy> copies{};  // that it has not waited for
  int copy_groups = 0;         // that it has committed
  bool has_waited = false;     // for the launch before
  bool has_arrived = false;    // at the cluster's barrier, for which it has not waited yet

  Warp& warp() const { return block->warps[index / kWarp]; }
  unsigned lane() const { return index % kWarp; }
};

/// Fibers or shared memories, reused by launch after launch. Under ThreadSanitizer no launch gets one twice,
/// because the stack writes of two blocks have no order.
template <class T>
class Pool {
 public:
  T* take() {
    if (given_ == all_.size()) all_.push_back(std::make_unique<T>());
    return all_[given_++].get();
  }
  void block_ended() {
    if (!kTsan) given_ = 0;
  }
  void launch_ended() { given_ = 0; }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::size_t given_ = 0;
};

Pool<Fiber> fibers;
Pool<SharedMemory> shared_memories;
Thread* running = nullptr;
int64_t launch_count = 0;
thread_local Launch newest_launch;
char launch_end, device_fence;  // ThreadSanitizer's objects for these events

class Run {
 public:
  Run(const Launch& launch, const std::function<void()>& body)
      : launch_(launch), body_(body), layout_(launch.shared_bytes), random_(settings().seed) {}

  ~Run() {
    for (Thread& thread : threads_)
      if (thread.state != State::kDone) thread.fiber->abandon(true);
    for (Block& block : blocks_) block.shared->end_block(layout_);
    fibers.launch_ended();
    shared_memories.launch_ended();
    acquire(&launch_end);
  }

  void all() {
    const uint64_t blocks = uint64_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
    for (const std::size_t cluster : order(blocks / launch_.cluster)) run_cluster(cluster * launch_.cluster);
  }

  std::string where(const Thread& thread) const {
    return std::string("[cuda_emulator] kernel ") + launch_.kernel + ", block " +
           to_string(thread.block->index) + ", thread " + std::to_string(thread.index) + ": ";
  }

  const Launch& launch() const { return launch_; }
  SharedLayout& layout() { return layout_; }
  std::vector<Block>& blocks() { return blocks_; }

  /// Threads [first, last) of the cluster no longer wait.
  void ready(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) threads_[i].state = State::kReady;
  }

  Meeting cluster_meeting;

 private:
  std::vector<std::size_t> order(std::size_t count) {
    std::vector<std::size_t> indices(count);
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    arrange(indices);
    return indices;
  }

  void arrange(std::vector<std::size_t>& indices) {
    if (settings().order == Order::kReverse)
      for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = indices.size() - 1 - i;
    if (settings().order == Order::kRandom)
      for (std::size_t i = indices.size(); i > 1; --i)
        std::swap(indices[i - 1], indices[random_.below(static_cast<int64_t>(i))]);
  }

  Index3 index_of(uint64_t block) const {
    const Index3& g = launch_.grid;
    return {static_cast<unsigned>(block % g.x), static_cast<unsigned>(block / g.x % g.y),
            static_cast<unsigned>(block / g.x / g.y)};
  }

  void begin(uint64_t first_block) {
    cluster_meeting = {};
    blocks_ = std::vector<Block>(launch_.cluster);
    threads_.clear();
    for (unsigned rank = 0; rank < launch_.cluster; ++rank) {
      Block& block = blocks_[rank];
      block.index = index_of(first_block + rank);
      block.rank = rank;
      block.shared = shared_memories.take();
      block.warps.resize(launch_.threads / kWarp);
      for (unsigned i = 0; i < launch_.threads; ++i)
        threads_.push_back({fibers.take(), &block, i, State::kReady, {}});
    }
    for (Thread& thread : threads_) thread.fiber->start(&Run::enter, this);
  }

  // Runs each of the 32 threads from indices[first] on that is ready until it waits. Returns false if none
  // was ready.
  bool run_threads(const std::vector<std::size_t>& indices, std::size_t first, std::size_t& left) {
    bool any = false;
    for (std::size_t k = first; k < first + kWarp; ++k) {
      Thread& thread = threads_[indices[k]];
      if (thread.state != State::kReady) continue;
      any = true;
      running = &thread;
      threadIdx = {thread.index, 0, 0};
      blockIdx = thread.block->index;
      thread.fiber->resume();
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      if (thread.state == State::kDone) {
        thread.fiber->abandon(false);
        --left;
      }
    }
    return any;
  }

  void run_cluster(uint64_t first_block) {
    begin(first_block);
    auto indices = order(threads_.size());
    std::size_t left = threads_.size();
    while (left > 0) {
      bool progress = false;
      for (std::size_t first = 0; first < indices.size(); first += kWarp)
        while (run_threads(indices, first, left)) {
          progress = true;
          if (settings().order == Order::kRandom) break;
        }
      if (!progress) throw EmulatorError(deadlock());
      if (settings().order == Order::kRandom) arrange(indices);
    }
    std::string damage;
    const Block* damaged = nullptr;
    for (Block& block : blocks_) {
      std::string said = block.shared->end_block(layout_);
      if (damage.empty() && !said.empty()) damaged = &block, damage = std::move(said);
    }
    if (damaged)
      throw EmulatorError(std::string("[cuda_emulator] kernel ") + launch_.kernel + ", block " +
                          to_string(damaged->index) + ": " + damage);
    blocks_.clear();
    threads_.clear();
    fibers.block_ended();
    shared_memories.block_ended();
  }

  // The entry of a fiber: one CUDA thread from start to end.
  static void enter(void* self) {
    auto* run = static_cast<Run*>(self);
    try {
      run->body_();
    } catch (const EmulatorError&) {
      run->failure_ = std::current_exception();
    } catch (const std::exception& e) {
      run->failure_ = std::make_exception_ptr(EmulatorError(run->where(*running) + e.what()));
    } catch (...) {
      run->failure_ = std::current_exception();
    }
    if (!running->copies.empty() && !run->failure_)
      run->failure_ = std::make_exception_ptr(EmulatorError(
          run->where(*running) + "this thread ends without wait_for_copies() after start_copy()"));
    if (run->launch().follows && !running->has_waited && !run->failure_)
      run->failure_ = std::make_exception_ptr(EmulatorError(
          run->where(*running) + "this thread ends without wait_for_launch_before(), which it follows"));
    if (running->has_arrived && !run->failure_)
      run->failure_ = std::make_exception_ptr(EmulatorError(
          run->where(*running) + "this thread ends without cluster_wait() after cluster_arrive()"));
    running->state = State::kDone;
    Block& block = *running->block;
    ++block.done;
    const Meeting& waited = block.meeting.arrived > 0 ? block.meeting : run->cluster_meeting;
    if (waited.arrived > 0 && !run->failure_)
      run->failure_ = std::make_exception_ptr(EmulatorError(
          run->where(*running) + "divergent barrier: this thread has left the kernel while others wait at " +
          to_string(waited.place)));
    release(&launch_end);
  }

  // Describes what the first waiting thread waits for, and what the other threads do.
  std::string deadlock() const {
    const Thread* waits = nullptr;
    for (const Thread& thread : threads_)
      if (thread.state != State::kDone && (!waits || thread.state < waits->state)) waits = &thread;
    const char* const kind = waits->state == State::kAtWarp    ? "a warp's operation at "
                             : waits->state == State::kAtBlock ? "__syncthreads at "
                                                               : "the cluster's barrier at ";
    std::string said = where(*waits) + "deadlock: waits in " + kind + to_string(waits->place);
    if (waits->state == State::kAtWarp) said += ", missing lanes:";
    for (const Thread& thread : threads_) {
      const bool same_warp = thread.block == waits->block && thread.index / kWarp == waits->index / kWarp;
      if (waits->state != State::kAtWarp) {
        if (thread.state == waits->state) continue;
        return said + "; thread " + std::to_string(thread.index) + " of block " +
               to_string(thread.block->index) + " waits at " + to_string(thread.place);
      }
      if (!same_warp || thread.state == State::kAtWarp) continue;
      said += " " + std::to_string(thread.lane()) +
              (thread.state == State::kDone ? " (has left)" : " (waits at " + to_string(thread.place) + ")");
    }
    return said;
  }

  const Launch& launch_;
  const std::function<void()>& body_;
  SharedLayout layout_;
  Random random_;
  std::vector<Block> blocks_;    // of the current cluster
  std::vector<Thread> threads_;  // of the current cluster
  std::exception_ptr failure_;
};

Run* current = nullptr;

void check(const Launch& launch) {
  const auto refuse = [&](const std::string& why) {
    throw EmulatorError(std::string("[cuda_emulator] kernel ") + launch.kernel + ": invalid launch: " + why);
  };
  const Index3& g = launch.grid;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    refuse("grid " + to_string(g));
  if (launch.threads == 0 || launch.threads % kWarp || launch.threads > 1024)
    refuse(std::to_string(launch.threads) + " threads per block, not a multiple of 32 up to 1024");
  if (launch.cluster == 0 || static_cast<int>(launch.cluster) > settings().max_cluster ||
      g.x % launch.cluster)
    refuse("clusters of " + std::to_string(launch.cluster) + " blocks in a grid of " + to_string(g) +
           "; the device has up to " + std::to_string(settings().max_cluster));
  if (launch.cluster > 1 && settings().active_clusters[std::countr_zero(launch.cluster)] == 0)
    refuse("clusters of " + std::to_string(launch.cluster) + " blocks, of which none fits");
  if (static_cast<int64_t>(launch.shared_bytes) > settings().shared_bytes_per_block)
    refuse(std::to_string(launch.shared_bytes) + " bytes of shared memory of " +
           std::to_string(settings().shared_bytes_per_block));
}

bool same(const Place& a, const Place& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

// The current thread waits until all threads [first, last) have arrived. The last one continues at once.
void meet(Meeting& meeting, std::size_t first, std::size_t last, State waiting, bool orders_memory,
          const Place& place) {
  Thread& self = *running;
  if (meeting.arrived == 0)
    meeting.place = place;
  else if (!same(meeting.place, place))
    fail(std::string("divergent ") + (waiting == State::kAtWarp ? "warp" : "barrier") +
         ": this thread is at " + to_string(place) + " while others wait at " + to_string(meeting.place));
  char* const order = &meeting.order[meeting.turn];
  if (orders_memory) release(order);
  self.place = place;
  if (++meeting.arrived == last - first) {
    meeting.arrived = 0;
    meeting.turn ^= 1;
    current->ready(first, last);
  } else {
    self.state = waiting;
    self.fiber->suspend();
  }
  if (orders_memory) acquire(order);
}

void meet_in_cluster(bool orders_memory, Place place) {
  if (running->has_arrived) fail("a barrier of the cluster after cluster_arrive() without cluster_wait()");
  const Launch& launch = current->launch();
  meet(current->cluster_meeting, 0, std::size_t{launch.threads} * launch.cluster, State::kAtCluster,
       orders_memory, place);
}

}  // namespace

Settings& settings() {
  static Settings settings;
  return settings;
}

int64_t launches() {
  return launch_count;
}

const Launch& last_launch() {
  return newest_launch;
}

void run(const Launch& launch, const std::function<void()>& body) {
  if (current) throw EmulatorError("[cuda_emulator] a kernel launches another one");
  check(launch);
  ++launch_count;
  newest_launch = launch;
  blockDim = {launch.threads, 1, 1};
  gridDim = launch.grid;
  Run run(launch, body);
  struct Reset {
    ~Reset() { current = nullptr; }
  } reset;
  current = &run;
  run.all();
}

void fail(const std::string& message) {
  throw EmulatorError(current->where(*running) + message);
}

void block_barrier(Place place) {
  Block& block = *running->block;
  if (block.done > 0)
    fail("divergent barrier: this thread is at " + to_string(place) + ", and " + std::to_string(block.done) +
         " of the block have left the kernel");
  const std::size_t threads = current->launch().threads, first = block.rank * threads;
  meet(block.meeting, first, first + threads, State::kAtBlock, true, place);
}

void cluster_barrier(Place place) {
  meet_in_cluster(true, place);
}

// The whole barrier happens at its first half. The checks make up for what then cannot go wrong: that a block
// ends early, or is read late.
void cluster_arrive(Place place) {
  meet_in_cluster(false, place);
  running->has_arrived = true;
}

void cluster_wait() {
  if (!running->has_arrived) fail("cluster_wait() without cluster_arrive()");
  running->has_arrived = false;
}

const uint64_t* warp_exchange(uint64_t value, bool orders_memory, Place place) {
  Thread& self = *running;
  Warp& warp = self.warp();
  uint64_t* const values = warp.values[warp.meeting.turn];
  values[self.lane()] = value;
  const std::size_t first =
      std::size_t{self.block->rank} * current->launch().threads + self.index - self.lane();
  meet(warp.meeting, first, first + kWarp, State::kAtWarp, orders_memory, place);
  return values;
}

void* shared_variable(const void* key, std::size_t bytes) {
  // With dynamic memory the kernel's limit was raised, as far as the device allows.
  const int64_t most = settings().shared_bytes_per_block, usual = settings().usual_shared_bytes;
  const auto limit =
      static_cast<std::size_t>(current->launch().shared_bytes > 0 ? std::max(most, usual) : usual);
  return running->block->shared->declare(current->layout(), current->layout().piece(key, bytes, limit));
}

void* dynamic_shared_memory() {
  return running->block->shared->declare(current->layout(), 0);
}

void* in_cluster_block(void* shared, unsigned rank) {
  Block& own = *running->block;
  if (rank >= current->launch().cluster)
    fail("block " + std::to_string(rank) + " of a cluster of " + std::to_string(current->launch().cluster));
  if (!own.shared->contains(shared)) fail("an address outside of shared memory is mapped to another block");
  if (running->has_arrived && rank != own.rank)
    fail("shared memory of block " + std::to_string(rank) +
         " of the cluster after cluster_arrive(), which says that this block has read it");
  Block& other = current->blocks()[rank];
  const auto offset = static_cast<std::size_t>(static_cast<char*>(shared) - own.shared->begin());
  if (!other.shared->is_declared(offset, current->layout()))
    fail("shared memory of block " + std::to_string(rank) + " of the cluster before that block has it");
  if (other.done == current->launch().threads)
    fail("shared memory of block " + std::to_string(rank) + " of the cluster after that block has ended");
  return other.shared->begin() + offset;
}

unsigned cluster_rank() {
  return running->block->rank;
}

unsigned cluster_size() {
  return current->launch().cluster;
}

void start_copy(void* to, const void* from, std::size_t bytes) {
  if (!running->block->shared->contains(to)) fail("start_copy() to an address outside of shared memory");
  std::memset(to, 0xff, bytes);
  running->copies.push_back({to, from, bytes, running->copy_groups});
}

void wait_for_launch_before() {
  running->has_waited = true;
}

void commit_copies() {
  ++running->copy_groups;
}

void wait_for_copies_but(int newest_groups) {
  auto& copies = running->copies;
  const auto is_waited_for = [&](const Copy& copy) {
    return copy.group + newest_groups < running->copy_groups;
  };
  for (const Copy& copy : copies)
    if (is_waited_for(copy)) std::memcpy(copy.to, copy.from, copy.bytes);
  std::erase_if(copies, is_waited_for);
}

void fence() {
  acquire(&device_fence);
  release(&device_fence);
}

}  // namespace palimpsest::cuda_emulator
