// The emulator itself: correct kernels give correct results in every order of threads, and each kind of
// defect is named. planted_defects.cpp tests the same with the sanitizers.
#include "palimpsest/kernels/cuda/device/platform.cuh"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "tests/support/compare.h"
#include "tests/support/cuda_emulator/sanitizers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace palimpsest::testing {
namespace {

using cuda_emulator::EmulatorError;
using cuda_emulator::Order;
using kernels::cuda::kAllLanes;

constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kRandom};

class Emulator : public ::testing::Test {
 protected:
  void TearDown() override { cuda_emulator::settings() = {}; }

  template <class Body>
  static void in_every_order(const Body& body) {
    for (const Order order : kOrders) {
      cuda_emulator::settings().order = order;
      SCOPED_TRACE(static_cast<int>(order));
      body();
    }
  }

  /// One launch of `kernel`, a lambda without captures.
  template <class... Arguments>
  static void launch(kernels::cuda::LaunchShape shape, void (*kernel)(Arguments...), Arguments... arguments) {
    kernels::cuda::launch("kernel_under_test", shape, nullptr, kernel, arguments...);
  }

  /// Returns the message of the error that `body` throws; if it throws none, fails and returns "".
  template <class Body>
  static std::string error_of(const Body& body) {
    try {
      body();
    } catch (const EmulatorError& e) {
      return e.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
};

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

// ---- Correct kernels

void write_index(int* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<int>(blockIdx.x * 1000 + threadIdx.x);
}

TEST_F(Emulator, RunsEveryThreadOfEveryBlockOnce) {
  in_every_order([] {
    std::vector<int> out(3 * 64, -1);
    launch({.blocks = 3, .threads = 64}, write_index, out.data());
    for (int i = 0; i < 3 * 64; ++i) EXPECT_EQ(out[i], i / 64 * 1000 + i % 64);
  });
}

void write_turn(int* out, int* next) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = (*next)++;
}

std::vector<int> turns(Order order, uint64_t seed) {
  cuda_emulator::settings() = {.order = order, .seed = seed};
  std::vector<int> out(4 * 32);
  int next = 0;
  kernels::cuda::launch("write_turn", {.blocks = 4, .threads = 32}, nullptr, write_turn, out.data(), &next);
  return out;
}

TEST_F(Emulator, RunsThreadsAndBlocksInTheOrderAskedFor) {
  if (cuda_emulator::kTsan) GTEST_SKIP() << "the kernel that records the order has a data race";
  std::vector<int> forward(4 * 32);
  std::iota(forward.begin(), forward.end(), 0);
  EXPECT_EQ(turns(Order::kForward, 1), forward);
  EXPECT_EQ(turns(Order::kReverse, 1), std::vector<int>(forward.rbegin(), forward.rend()));
  EXPECT_EQ(turns(Order::kRandom, 1), turns(Order::kRandom, 1));
  EXPECT_NE(turns(Order::kRandom, 1), turns(Order::kRandom, 2));
  EXPECT_NE(turns(Order::kRandom, 1), forward);
}

void reverse_by_shared_memory(int* values) {
  PALIMPSEST_SHARED(shared, int[96]);
  for (int round = 0; round < 3; ++round) {  // an odd number of reversals
    shared[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = shared[95 - threadIdx.x];
    __syncthreads();
  }
}

TEST_F(Emulator, SynchronizesTheThreadsOfABlock) {
  in_every_order([] {
    std::vector<int> values(96), reversed(96);
    std::iota(values.begin(), values.end(), 0);
    std::copy(values.rbegin(), values.rend(), reversed.begin());
    launch({.threads = 96}, reverse_by_shared_memory, values.data());
    EXPECT_EQ(values, reversed);
  });
}

void shuffle_all_ways(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* const own = out + threadIdx.x * 5;
  own[0] = __shfl_xor_sync(kAllLanes, lane, 5);
  own[1] = __shfl_down_sync(kAllLanes, lane, 3);
  own[2] = __shfl_sync(kAllLanes, lane, 17);
  own[3] = static_cast<int>(__ballot_sync(kAllLanes, lane % 2));
  own[4] = __any_sync(kAllLanes, lane == 9);
}

TEST_F(Emulator, ShufflesWithinAWarp) {
  in_every_order([] {
    std::vector<int> out(64 * 5);
    launch({.threads = 64}, shuffle_all_ways, out.data());
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32;
      EXPECT_EQ(out[i * 5], lane ^ 5);
      EXPECT_EQ(out[i * 5 + 1], lane + 3 < 32 ? lane + 3 : lane);
      EXPECT_EQ(out[i * 5 + 2], 17);
      EXPECT_EQ(static_cast<unsigned>(out[i * 5 + 3]), 0xaaaaaaaau);
      EXPECT_EQ(out[i * 5 + 4], 1);
    }
  });
}

void sum_over_grid(const double* values, double* partial, double* sum, unsigned* counter) {
  double own[1] = {values[blockIdx.x * blockDim.x + threadIdx.x]};
  kernels::cuda::block_sum<128>(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = own[0];
  if (!kernels::cuda::is_last_block(counter, gridDim.x)) return;
  own[0] = threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0;
  kernels::cuda::block_sum<128>(own);
  if (threadIdx.x == 0) *sum = own[0];
}

TEST_F(Emulator, AddsUpAGridWithTheSameBitsInEveryOrder) {
  std::vector<double> values(9 * 128);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i)) * 1e3;
  std::set<double> sums;
  in_every_order([&] {
    std::vector<double> partial(9, NAN);
    double sum = NAN;
    unsigned counter = 0;
    for (int again = 0; again < 2; ++again) {
      kernels::cuda::launch("sum_over_grid", {.blocks = 9, .threads = 128}, nullptr, sum_over_grid,
                            values.data(), partial.data(), &sum, &counter);
      EXPECT_EQ(counter, 0u);
      sums.insert(sum);
    }
  });
  ASSERT_EQ(sums.size(), 1u);
  const double got = *sums.begin(), want = std::accumulate(values.begin(), values.end(), 0.0);
  EXPECT_TRUE(close(std::span(&got, 1), std::span(&want, 1), tolerance(DType::f64), 0));
}

void write_dynamic(float* out, int floats) {
  PALIMPSEST_DYNAMIC_SHARED(bytes);
  auto* const shared = reinterpret_cast<float*>(bytes);
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x];  // before any write
  if (static_cast<int>(threadIdx.x) < floats) shared[threadIdx.x] = 2;
}

TEST_F(Emulator, FillsSharedMemoryWithNotANumberForEveryBlock) {
  std::vector<float> out(3 * 64, 0);
  launch({.blocks = 3, .threads = 64, .shared_bytes = 256}, write_dynamic, out.data(), 64);
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

// Each block writes values and reads those of every other block.
void exchange_in_cluster(unsigned* out) {
  PALIMPSEST_SHARED(mine, unsigned[32]);
  mine[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
  kernels::cuda::cluster_sync();
  unsigned sum = 0;
  for (unsigned rank = 0; rank < kernels::cuda::cluster_size(); ++rank)
    sum += kernels::cuda::in_cluster_block(mine, rank)[(threadIdx.x + rank) % 32];
  out[blockIdx.x * 32 + threadIdx.x] = sum;
  kernels::cuda::cluster_sync();
}

TEST_F(Emulator, LetsTheBlocksOfAClusterReadOneAnothersSharedMemory) {
  in_every_order([] {
    std::vector<unsigned> out(8 * 32);
    launch({.blocks = 8, .threads = 32, .cluster = 4}, exchange_in_cluster, out.data());
    for (unsigned block = 0; block < 8; ++block)
      for (unsigned thread = 0; thread < 32; ++thread) {
        unsigned want = 0;
        for (unsigned rank = 0; rank < 4; ++rank) want += (block / 4 * 4 + rank) * 100 + (thread + rank) % 32;
        EXPECT_EQ(out[block * 32 + thread], want);
      }
  });
}

void throw_in_thread(int thread) {
  if (static_cast<int>(threadIdx.x) == thread) throw std::out_of_range("thrown by the kernel");
}

TEST_F(Emulator, CarriesAnExceptionOutOfAThreadAndGoesOn) {
  for (int again = 0; again < 2; ++again)
    expect_parts(error_of([] { launch({.blocks = 2, .threads = 64}, throw_in_thread, 33); }),
                 {"kernel kernel_under_test", "block (0, 0, 0)", "thread 33", "thrown by the kernel"});
  std::vector<int> out(64);
  launch({.threads = 64}, write_index, out.data());
  EXPECT_EQ(out[63], 63);
}

// ---- Defects

void barrier_for_some(int) {
  if (threadIdx.x < 40) __syncthreads();
}

void two_barriers(int) {
  if (threadIdx.x < 40)
    __syncthreads();
  else
    __syncthreads();
}

void shuffle_for_some(int lanes) {
  if (static_cast<int>(threadIdx.x) < lanes) __shfl_xor_sync(kAllLanes, 1, 1);
}

void shuffle_against_barrier(int) {
  if (threadIdx.x < 5) __syncwarp();
  __syncthreads();
}

void part_of_a_warp(int) {
  __shfl_xor_sync(0xffffu, 1, 1);
}

TEST_F(Emulator, NamesABarrierThatNotAllThreadsComeTo) {
  in_every_order([] {
    expect_parts(error_of([] { launch({.threads = 64}, barrier_for_some, 0); }),
                 {"divergent barrier", "left the kernel", "emulator_test.cpp:"});
    expect_parts(error_of([] { launch({.threads = 64}, two_barriers, 0); }), {"divergent barrier"});
  });
}

TEST_F(Emulator, NamesTheLanesThatAShuffleMisses) {
  in_every_order([] {
    expect_parts(error_of([] { launch({.threads = 32}, shuffle_for_some, 30); }),
                 {"deadlock", "missing lanes: 30 (has left) 31 (has left)"});
    expect_parts(error_of([] { launch({.threads = 32}, shuffle_against_barrier, 0); }),
                 {"deadlock", "missing lanes: 5 (waits at cuda_emulator_test.cpp:"});
  });
  expect_parts(error_of([] { launch({.threads = 32}, part_of_a_warp, 0); }), {"only full masks"});
}

void write_beside(int at) {
  PALIMPSEST_SHARED(first, float[10]);
  PALIMPSEST_SHARED(second, float[10]);
  float* volatile hidden = at < 0 ? second : first;  // else the compiler warns
  if (threadIdx.x == 0) hidden[at] = 1;
}

TEST_F(Emulator, FindsAWriteBesideASharedVariable) {
  for (const int at : {10, -1}) {
    const auto run = [&] { launch({.threads = 32}, write_beside, at); };
#ifdef PALIMPSEST_ASAN
    EXPECT_DEATH(run(), "use-after-poison");
#else
    expect_parts(error_of(run), {"overrun: byte", at < 0 ? "before" : "behind", "variable of 40 bytes"});
#endif
  }
}

void load_vector(const float* from, float* to) {
  const auto* const packed = reinterpret_cast<const kernels::cuda::Packed<float>*>(from);
  store_vector(reinterpret_cast<kernels::cuda::Packed<float>*>(to), kernels::cuda::load_vector(packed));
}

TEST_F(Emulator, NamesAVectorAccessOffItsAlignment) {
  alignas(16) float values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {};
  const auto run = [&](int from, int to) {
    launch<const float*, float*>({.threads = 32}, load_vector, values + from, out + to);
  };
  if (!cuda_emulator::kTsan) run(4, 0);  // 32 threads write the same values, which is a harmless race
  expect_parts(error_of([&] { run(1, 0); }), {"misaligned 16-byte load, 4 bytes off"});
  expect_parts(error_of([&] { run(0, 3); }), {"misaligned 16-byte store, 12 bytes off"});
}

void read_neighbour_too_early(unsigned* out) {
  PALIMPSEST_SHARED(mine, unsigned[1]);
  mine[0] = 1;
  *out = *kernels::cuda::in_cluster_block(mine, 1 - kernels::cuda::cluster_rank());
}

using kernels::cuda::Packed;

TEST_F(Emulator, CopiesTheGroupsThatTheThreadWaitsFor) {
  std::vector<float> x(3 * 4), out(3 * 3 * 4);
  std::iota(x.begin(), x.end(), 1.F);
  const auto kernel = [](const float* from, float* to) {
    PALIMPSEST_DYNAMIC_SHARED(bytes);
    if (threadIdx.x > 0) return;
    auto* const mine = reinterpret_cast<Packed<float>*>(bytes);
    for (int i = 0; i < 3; ++i) {
      kernels::cuda::start_copy(mine + i, reinterpret_cast<const Packed<float>*>(from) + i);
      if (i < 2) kernels::cuda::commit_copies();
    }
    const auto look = [&](int time) {
      for (int i = 0; i < 3 * 4; ++i) to[time * 12 + i] = mine[i / 4].values[i % 4];
    };
    kernels::cuda::wait_for_copies_but<1>();
    look(0);
    kernels::cuda::wait_for_copies_but<0>();  // the third copy belongs to no group yet
    look(1);
    kernels::cuda::wait_for_copies();
    look(2);
  };
  launch({.blocks = 1, .threads = 32, .shared_bytes = 48}, +kernel, static_cast<const float*>(x.data()),
         out.data());
  for (int time = 0; time < 3; ++time)
    for (int i = 0; i < 12; ++i) {
      SCOPED_TRACE(std::to_string(time) + ", " + std::to_string(i));
      if (i / 4 <= time)
        EXPECT_EQ(out[time * 12 + i], x[i]);
      else
        EXPECT_TRUE(std::isnan(out[time * 12 + i]));
    }
}

TEST_F(Emulator, CopiesToSharedMemoryWhenTheThreadWaits) {
  std::vector<float> x(128), early(128), late(128);
  std::iota(x.begin(), x.end(), 1.F);
  const auto kernel = [](const float* from, float* before, float* after) {
    PALIMPSEST_DYNAMIC_SHARED(bytes);
    auto* const mine = reinterpret_cast<Packed<float>*>(bytes) + threadIdx.x;
    kernels::cuda::start_copy(mine, reinterpret_cast<const Packed<float>*>(from) + threadIdx.x);
    for (int i = 0; i < 4; ++i) before[4 * threadIdx.x + i] = mine->values[i];
    kernels::cuda::wait_for_copies();
    for (int i = 0; i < 4; ++i) after[4 * threadIdx.x + i] = mine->values[i];
  };
  in_every_order([&] {
    launch({.blocks = 1, .threads = 32, .shared_bytes = 512}, +kernel, static_cast<const float*>(x.data()),
           early.data(), late.data());
    for (const float value : early) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(late, x);
  });
}

TEST_F(Emulator, NamesACopyThatNoThreadWaitsForOrOffItsAlignmentOrElsewhere) {
  alignas(16) static float x[8];
  const auto forgets = [](const float* from) {
    PALIMPSEST_DYNAMIC_SHARED(bytes);
    kernels::cuda::start_copy(reinterpret_cast<Packed<float>*>(bytes) + threadIdx.x,
                              reinterpret_cast<const Packed<float>*>(from));
    if (threadIdx.x != 5) kernels::cuda::wait_for_copies();
  };
  const auto to_global = [](float* to) {
    kernels::cuda::start_copy(reinterpret_cast<Packed<float>*>(to),
                              reinterpret_cast<const Packed<float>*>(to) + 1);
  };
  const kernels::cuda::LaunchShape shape{.blocks = 1, .threads = 32, .shared_bytes = 512};
  expect_parts(error_of([&] { launch(shape, +forgets, static_cast<const float*>(x)); }),
               {"thread 5", "ends without wait_for_copies() after start_copy()"});
  expect_parts(error_of([&] { launch(shape, +forgets, static_cast<const float*>(x + 1)); }),
               {"thread 0", "misaligned 16-byte copy, 4 bytes off"});
  expect_parts(error_of([&] { launch(shape, +to_global, static_cast<float*>(x)); }),
               {"start_copy() to an address outside of shared memory"});
}

TEST_F(Emulator, NamesAccessToANeighboursSharedMemoryThatIsNotThereYetOrNoMore) {
  unsigned out = 0;
  expect_parts(
      error_of([&] { launch({.blocks = 2, .threads = 32, .cluster = 2}, read_neighbour_too_early, &out); }),
      {"before that block has it"});
  // The block that runs last reads one that has ended, or that may end because all threads arrived.
  const auto late = [](unsigned* read, int arrives) {
    PALIMPSEST_SHARED(mine, unsigned[1]);
    if (threadIdx.x == 0) mine[0] = 1;
    kernels::cuda::cluster_sync();
    if (arrives) kernels::cuda::cluster_arrive();
    if (threadIdx.x == 0) *read = *kernels::cuda::in_cluster_block(mine, 1 - kernels::cuda::cluster_rank());
    if (arrives) kernels::cuda::cluster_wait();
  };
  const kernels::cuda::LaunchShape shape{.blocks = 2, .threads = 32, .cluster = 2};
  expect_parts(error_of([&] { launch(shape, +late, &out, 0); }), {"after that block has ended"});
  expect_parts(error_of([&] { launch(shape, +late, &out, 1); }), {"after cluster_arrive(), which says"});
}

TEST_F(Emulator, NamesABarrierOfAClusterWithOneOfItsHalves) {
  const auto run = [](int missing) {
    const auto kernel = [](int without) {
      if (without != 0) kernels::cuda::cluster_arrive();
      if (without != 1) kernels::cuda::cluster_wait();
      if (without == 2) kernels::cuda::cluster_arrive(), kernels::cuda::cluster_sync();
    };
    launch({.blocks = 2, .threads = 32, .cluster = 2}, +kernel, missing);
  };
  run(3);
  in_every_order([&] {
    expect_parts(error_of([&] { run(0); }), {"cluster_wait() without cluster_arrive()"});
    expect_parts(error_of([&] { run(1); }), {"ends without cluster_wait() after cluster_arrive()"});
    expect_parts(error_of([&] { run(2); }), {"a barrier of the cluster after cluster_arrive()"});
  });
}

void too_much_shared(int) {
  PALIMPSEST_SHARED(large, char[3000]);
  large[threadIdx.x] = 0;
}

TEST_F(Emulator, RefusesALaunchThatNoDeviceWouldTake) {
  const auto refused = [](kernels::cuda::LaunchShape shape) {
    return error_of([&] { launch(shape, too_much_shared, 0); });
  };
  expect_parts(refused({.threads = 33}), {"not a multiple of 32"});
  expect_parts(refused({.threads = 2048}), {"2048 threads"});
  expect_parts(refused({.blocks = 0, .threads = 32}), {"grid (0, 1, 1)"});
  expect_parts(refused({.blocks = 3, .threads = 32, .cluster = 2}), {"clusters of 2 blocks"});
  cuda_emulator::settings().max_cluster = 1;
  expect_parts(refused({.blocks = 2, .threads = 32, .cluster = 2}), {"the device has up to 1"});
  cuda_emulator::settings().shared_bytes_per_block = cuda_emulator::settings().usual_shared_bytes = 4000;
  expect_parts(refused({.threads = 32, .shared_bytes = 5000}), {"5000 bytes of shared memory of 4000"});
  expect_parts(refused({.threads = 32, .shared_bytes = 2000}), {"the kernel declares 5000"});
  cuda_emulator::settings().usual_shared_bytes = 2000;
  expect_parts(refused({.threads = 32}), {"a block may have 2000 bytes, the kernel declares 3000"});
}

void wait_unless(int thread) {
  if (static_cast<int>(threadIdx.x) != thread) kernels::cuda::wait_for_launch_before();
}

TEST_F(Emulator, NamesAThreadThatDoesNotWaitForTheLaunchThatItFollows) {
  launch({.threads = 32, .follows = true}, wait_unless, 32);
  launch({.threads = 32}, wait_unless, 5);
  expect_parts(error_of([] { launch({.threads = 32, .follows = true}, wait_unless, 5); }),
               {"thread 5", "ends without wait_for_launch_before()"});
}

TEST_F(Emulator, CountsLaunches) {
  const int64_t before = cuda_emulator::launches();
  std::vector<int> out(64);
  for (int i = 0; i < 3; ++i) launch({.threads = 64}, write_index, out.data());
  EXPECT_EQ(cuda_emulator::launches() - before, 3);
}

}  // namespace
}  // namespace palimpsest::testing
