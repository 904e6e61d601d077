#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

/// Executes CUDA kernels on the CPU, to test them and not to be fast. The same .cu sources are compiled as
/// C++; cuda_platform.cuh takes the place of CUDA's own headers. Each CUDA thread is a fiber (fiber.h), and
/// all run on the OS thread that launches. Blocks run in turn; the blocks of a cluster run together. A thread
/// that waits (__syncthreads, __syncwarp, shuffles, the barrier of a cluster) returns to a scheduler, which
/// runs the other threads in the order that the test asks for.
///
/// EmulatorError names kernel, block and thread. It reports
///   a barrier that not all threads reach, or that they reach at different places of the source;
///   an operation of a warp with missing lanes;
///   a vector access that is not aligned;
///   a thread that ends without a wait for the copies that it started, for the launch that this one follows, or
///   for the cluster's barrier at which it arrived;
///   a write beside a shared variable, into its red zones;
///   a thread that asks for an address in another block's shared memory before that block declares it, after
///   that block ends, or after the thread arrived at the barrier that lets that block end;
///   a launch that no device would accept.
/// Shared memory is filled with NaN at first.
/// AddressSanitizer detects accesses outside of any buffer, also in shared memory. ThreadSanitizer detects
/// missing barriers and fences in every order of threads, even if the values are right: it takes each CUDA
/// thread for a thread of its own, ordered only by barriers, fences and launches.
/// Not detected: coalescing, bank conflicts, speed, and errors in nvcc's cuda_platform.cuh.
namespace palimpsest::cuda_emulator {

class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The order in which blocks run, and threads that can continue. A thread runs until it waits for others. A
/// warp runs until all of its threads wait, except with kRandom.
enum class Order { kForward, kReverse, kRandom };

/// The device and the schedule of the next launches.
struct Settings {
  Order order = Order::kForward;
  uint64_t seed = 1;                            ///< for Order::kRandom
  int64_t shared_bytes_per_block = 227 * 1024;  ///< if a launch asks for them
  int64_t usual_shared_bytes = 48 * 1024;       ///< without asking
  int max_cluster = 8;                          ///< 1: a device without clusters
  int multiprocessors = 132;
  /// Clusters of 1, 2, 4 and 8 blocks that run at once; 0: the device refuses them.
  int64_t active_clusters[4] = {int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30};
  int device = 0;                 ///< the number of the current device
  bool has_device_memory = true;  ///< false: allocations fail
  bool can_clear = true;          ///< false: queueing a memset fails
};
Settings& settings();

/// The number of launches since the program began.
int64_t launches();

/// Until the end of the scope work on `stream` is recorded for a graph. (It runs all the same.)
class Capture {
 public:
  explicit Capture(const void* stream);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Destroys the graph, at a time when it is not recorded any more.
  void destroy_graph();

 private:
  const void* stream_;
  uint64_t id_;
};

/// The allocations of device memory since the program began.
int64_t device_allocations();

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Launch {
  const char* kernel = "";
  Index3 grid{1, 1, 1};
  unsigned threads = 1;          ///< per block: a multiple of 32, at most 1024
  std::size_t shared_bytes = 0;  ///< dynamic shared memory per block
  bool follows = false;          ///< all threads wait for the launch before
  unsigned cluster = 1;          ///< blocks per cluster, along x
};

/// The last launch of this thread; before the first one an empty one.
const Launch& last_launch();

/// Returns the number of the graph that `stream` records, or 0.
uint64_t capture_of(const void* stream);
/// Calls function(argument) when the graph that `stream` records is destroyed; returns whether there is one.
bool call_with_graph_end(const void* stream, void (*function)(void*), void* argument);
/// Zeroed memory, which is never freed; null if the settings refuse it.
void* new_device_memory(std::size_t bytes);

/// Runs `body`, a call of the kernel, once per thread. Throws EmulatorError.
void run(const Launch& launch, const std::function<void()>& body);

// ---- For cuda_platform.cuh. Only a kernel may call these functions.

using Place = std::source_location;

void block_barrier(Place place);
void cluster_barrier(Place place);
void cluster_arrive(Place place);
void cluster_wait();
/// Exchanges one value per lane: all lanes of the warp call it, and each gets the values of all 32. They stay
/// readable until the lane's second next call. `orders_memory`: all lanes see afterwards what any lane wrote
/// before.
const uint64_t* warp_exchange(uint64_t value, bool orders_memory, Place place);

/// This block's shared memory for a declaration, which `key` identifies.
void* shared_variable(const void* key, std::size_t bytes);
void* dynamic_shared_memory();
/// The address in the cluster's block `rank` that corresponds to `shared` in this block's shared memory.
void* in_cluster_block(void* shared, unsigned rank);
unsigned cluster_rank();
unsigned cluster_size();

/// Copies when the calling thread waits for it. Until then `to` holds NaN.
void start_copy(void* to, const void* from, std::size_t bytes);
void wait_for_launch_before();
void commit_copies();
void wait_for_copies_but(int newest_groups);

/// Orders this thread's accesses for the other blocks, as __threadfence.
void fence();

/// Throws EmulatorError; kernel, block and thread precede the message.
[[noreturn]] void fail(const std::string& message);

}  // namespace palimpsest::cuda_emulator
