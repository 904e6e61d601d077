#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

/// Executes CUDA kernels on the CPU, to prove them and not to be fast. The same .cu sources are compiled as
/// C++, against device.h in place of CUDA's own headers. Each CUDA thread is a fiber (fiber.h) on the one OS
/// thread that launches; blocks run in turn, those of a cluster together; what a kernel waits for
/// (__syncthreads, __syncwarp, shuffles, the barrier of a cluster) goes to a scheduler, which lets the
/// threads run in the order that a test asks for.
///
/// Reported as EmulatorError, with kernel, block and thread: a barrier that not all threads come to, or at
/// different places of the source; a warp's operation with missing lanes; a vector access off its alignment;
/// writes beside a shared variable (red zones); access to another block's shared memory before that block has
/// it; a launch that no device would take. Shared memory begins as NaN.
/// AddressSanitizer sees accesses outside of any buffer, shared ones too. ThreadSanitizer sees missing
/// barriers and missing fences in every order, which the values alone do not show: to it every CUDA thread is
/// a thread, ordered only by barriers, fences and launches.
/// Not seen: coalescing, bank conflicts, speed, and the CUDA wrappers that stand for inline assembly.
namespace palimpsest::cuda_emulator {

class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// In which order blocks, and the threads that can go on, do so. A thread runs until it waits for others, and
/// a warp, but for kRandom, until all of its threads do.
enum class Order { kForward, kReverse, kRandom };

/// The device and the schedule of the launches to come.
struct Settings {
  Order order = Order::kForward;
  uint64_t seed = 1;  ///< of Order::kRandom
  int64_t shared_bytes_per_block = 227 * 1024;
  int max_cluster = 8;  ///< 1: a device without clusters
  int multiprocessors = 132;
};
Settings& settings();

/// Launches since the program began.
int64_t launches();

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Launch {
  const char* kernel = "";
  Index3 grid{1, 1, 1};
  unsigned threads = 1;          ///< of a block: a multiple of 32, at most 1024
  std::size_t shared_bytes = 0;  ///< dynamic
  unsigned cluster = 1;          ///< blocks of a cluster, along x
};

/// Runs `body`, a call of the kernel, once a thread. Throws EmulatorError.
void run(const Launch& launch, const std::function<void()>& body);

// ---- What device.h is made of; only from inside of a kernel.

using Place = std::source_location;

void block_barrier(Place place);
void cluster_barrier(Place place);
/// All lanes of the warp come here, each with a value, and each is given those of all 32; they stay readable
/// until its next but one operation of the warp. `orders_memory`: what was written before is seen after.
const uint64_t* warp_exchange(uint64_t value, bool orders_memory, Place place);

/// Shared memory of this block; `key` is one address for each declaration.
void* shared_variable(const void* key, std::size_t bytes);
void* dynamic_shared_memory();
/// Where `shared`, an address in this block's shared memory, lies in that of the cluster's block `rank`.
void* in_cluster_block(void* shared, unsigned rank);
unsigned cluster_rank();
unsigned cluster_size();

/// Orders memory between blocks.
void fence();

/// Throws EmulatorError with kernel, block and thread in front.
[[noreturn]] void fail(const std::string& message);

}  // namespace palimpsest::cuda_emulator
