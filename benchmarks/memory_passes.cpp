#include "benchmarks/memory_passes.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdint>

namespace palimpsest::benchmarks {
namespace {

constexpr int64_t kWordsPerPart = 4096;

uint64_t* words_of(const at::Tensor& x) {
  return static_cast<uint64_t*>(x.data_ptr());
}

/// Calls part(begin, end) for ranges of the words of x.
template <class Part>
void for_words(const at::Tensor& x, const Part& part) {
  at::parallel_for(0, static_cast<int64_t>(x.nbytes() / sizeof(uint64_t)), kWordsPerPart, part);
}

/// The results of reads, so that no compiler leaves them out.
std::atomic<uint64_t> kept;

}  // namespace

void read_pass(const at::Tensor& x) {
  const uint64_t* const from = words_of(x);
  for_words(x, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += from[i];
    kept += sum;
  });
}

void read_pass(const at::Tensor& x, const at::Tensor& y) {
  const uint64_t *const a = words_of(x), *const b = words_of(y);
  for_words(x, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += a[i] ^ b[i];
    kept += sum;
  });
}

void update_pass(const at::Tensor& x) {
  uint64_t* const to = words_of(x);
  for_words(x, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] ^= 1;
  });
}

void update_pass(const at::Tensor& x, const at::Tensor& y) {
  const uint64_t* const from = words_of(x);
  uint64_t* const to = words_of(y);
  for_words(x, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] ^= from[i];
  });
}

}  // namespace palimpsest::benchmarks
