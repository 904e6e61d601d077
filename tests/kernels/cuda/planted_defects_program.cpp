// Proves that the emulator and the sanitizers detect defects: a small kernel like the real ones, with one
// planted defect. The tests expect a report of each defect, and no report for the kernel without one.
// planted_defects DEFECT ORDER: prints "right" and exits 0, or prints an error and exits 1.
#include "palimpsest/kernels/cuda/device/platform.cuh"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace palimpsest::kernels::cuda {
namespace {

enum class Defect { kNone, kMissingBarrier, kMissingFence, kTailOverRead, kSharedOverrun, kMisalignedVector };
constexpr const char* kDefectNames[] = {"none",           "missing_barrier", "missing_fence",
                                        "tail_over_read", "shared_overrun",  "misaligned_vector"};
constexpr const char* kOrderNames[] = {"forward", "reverse", "random"};

constexpr int kThreads = 64;
constexpr int kPerThread = 4;

bool is_last_block_without_fence(unsigned* counter, unsigned blocks) {
  PALIMPSEST_SHARED(is_last, bool);
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == blocks - 1;
  __syncthreads();
  return is_last;
}

// *sum = the sum of x[0, size). Threads add vectors and a tail, each block adds up its threads in shared
// memory, and the last block adds up all blocks.
void sum_all(Defect defect, const float* x, int size, float* partial, float* sum, unsigned* counter) {
  PALIMPSEST_SHARED(sums, float[kThreads]);
  const int thread = static_cast<int>(threadIdx.x);
  const int first = (static_cast<int>(blockIdx.x) * kThreads + thread) * kPerThread;
  float own = 0;
  if (first + kPerThread <= size) {
    Stored<float, kPerThread> v;
    v.load(defect == Defect::kMisalignedVector ? x + first - (first > 0) : x + first);
    for (int i = 0; i < kPerThread; ++i) own += v.values()[i];
  } else {
    const int end = defect == Defect::kTailOverRead ? size + 1 : size;
    for (int i = first; i < end; ++i) own += x[i];
  }
  sums[thread] = own;
  float* volatile past = sums;  // else the compiler warns
  if (defect == Defect::kSharedOverrun && thread == kThreads - 1) past[thread + 1] = own;
  if (defect != Defect::kMissingBarrier) __syncthreads();
  if (thread == 0) {
    float block = 0;
    for (const float s : sums) block += s;
    partial[blockIdx.x] = block;
  }
  const bool last = defect == Defect::kMissingFence ? is_last_block_without_fence(counter, gridDim.x)
                                                    : is_last_block(counter, gridDim.x);
  if (!last || thread != 0) return;
  *sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) *sum += partial[i];
}

float run(Defect defect) {
  constexpr int kBlocks = 3, kSize = kBlocks * kThreads * kPerThread - 6;  // a tail of 2
  const std::unique_ptr<float[]> x(new float[kSize]), partial(new float[kBlocks]);
  for (int i = 0; i < kSize; ++i) x[i] = static_cast<float>(i % 7);
  float sum = -1, want = 0;
  for (int i = 0; i < kSize; ++i) want += x[i];
  unsigned counter = 0;
  launch("sum_all", {.blocks = kBlocks, .threads = kThreads}, nullptr, sum_all, defect, x.get(), kSize,
         partial.get(), &sum, &counter);
  return sum - want;  // exact, as all sums are small integers
}

template <class Names>
int index_of(const Names& names, std::string_view name) {
  for (int i = 0; i < static_cast<int>(std::size(names)); ++i)
    if (names[i] == name) return i;
  throw std::invalid_argument("unknown name '" + std::string(name) + "'");
}

}  // namespace
}  // namespace palimpsest::kernels::cuda

int main(int argc, char** argv) {
  using namespace palimpsest;
  using namespace palimpsest::kernels::cuda;
  if (argc != 3) return std::fputs("usage: planted_defects DEFECT ORDER\n", stderr), 2;
  try {
    const auto defect = static_cast<Defect>(index_of(kDefectNames, argv[1]));
    cuda_emulator::settings().order = static_cast<cuda_emulator::Order>(index_of(kOrderNames, argv[2]));
    const float error = run(defect);
    std::printf("%s\n", error == 0 ? "right" : "wrong value");
    return error == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
