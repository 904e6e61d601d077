// Each run commits one defect, which the sanitizer of this build must report: it shows that the presets watch
// the kernels, the pool under the counting allocator, and the parallel loops. Prints "unnoticed" at the end
// of a run.
#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/memory/allocator/block_pool.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

namespace palimpsest {
namespace {

// A kernel told of 8 more values than its buffers have.
void kernel_overrun() {
  constexpr int64_t kValues = 100, kTold = 108;
  const kernels::AbnProblem layer{{1, 1, kTold},           Layout::kNCHW,           DType::f32,
                                  Activation::kLeakyReLU,
                                  /*activation_param=*/1., kernels::Saved::kOutput,
                                  /*relu_residual=*/false};
  std::vector<float> x(kValues, 1), z(kValues);
  double mean = 0, var = 0, inv_std = 0;
  kernels::cpu::abn_forward(layer, 1e-5,
                            {.x = x.data(), .z = z.data(), .mean = &mean, .var = &var, .inv_std = &inv_std});
}

unsigned char* take(memory::BlockPool& pool, int64_t bytes) {
  return reinterpret_cast<unsigned char*>(pool.take(bytes) + 1);
}

// A large block and 100 bytes more: a pool that rounds up or keeps freed blocks would hide both.
constexpr int64_t kLarge = memory::BlockPool::kSmallBytes + 100;

void block_overrun() {
  memory::BlockPool pool;
  volatile unsigned char* data = take(pool, kLarge);
  data[kLarge] = 1;
}

void freed_block() {
  memory::BlockPool pool;
  memory::BlockPool::Header* block = pool.take(kLarge);
  volatile unsigned char* data = reinterpret_cast<unsigned char*>(block + 1);
  pool.give(block);
  data[0] = 1;
}

void signed_overflow() {
  volatile int64_t most = std::numeric_limits<int64_t>::max();
  most = most + 1;
}

// Breaks the rule of parallel_tasks: its tasks write the same number.
void race() {
  int64_t sum = 0;
  parallel_tasks(1000, [&](int64_t i) { sum += i; });
  std::printf("%lld\n", static_cast<long long>(sum));
}

}  // namespace
}  // namespace palimpsest

int main(int argc, char** argv) {
  const std::string_view defect = argc > 1 ? argv[1] : "";
  if (defect == "kernel_overrun") palimpsest::kernel_overrun();
  if (defect == "block_overrun") palimpsest::block_overrun();
  if (defect == "freed_block") palimpsest::freed_block();
  if (defect == "signed_overflow") palimpsest::signed_overflow();
  if (defect == "race") palimpsest::race();
  std::puts("unnoticed");
}
