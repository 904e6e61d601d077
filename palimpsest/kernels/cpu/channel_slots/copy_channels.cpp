#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/channel_slots.h"

#include <cstring>

namespace palimpsest::kernels::cpu {
namespace {

enum class Direction { kGather, kScatter };

/// Copies values of kSize bytes. `full` and `part` are the tensors of channel_slots.h; the direction says which
/// one is written.
template <Direction kDirection, std::size_t kSize, class Full, class Part>
void copy_channels(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full, Part* part) {
  constexpr auto kStep = static_cast<int64_t>(kSize);
  const auto [n, c, s] = problem.shape;
  // `row`: of an image in NCHW, of a pixel in channels-last. Its channels have `values` values each.
  const auto copy = [&, c = c](int64_t row, int64_t k, int64_t values, std::size_t bytes) {
    const bool is_used = index[k] >= 0;
    const int64_t channel = is_used ? index[k] : index[k] + c;
    const auto whole = full + (row * c + channel) * values * kStep;
    const auto slot = part + (row * count + k) * values * kStep;
    if constexpr (kDirection == Direction::kGather)
      std::memcpy(slot, whole, bytes);
    else if (is_used)
      std::memcpy(whole, slot, bytes);
  };
  if (problem.layout == Layout::kNCHW) {
    parallel_tasks(n * count, [&, s = s](int64_t i) {
      copy(i / count, i % count, s, static_cast<std::size_t>(s) * kSize);
    });
    return;
  }
  parallel_ranges(n * s, [&](int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel)
      for (int64_t k = 0; k < count; ++k) copy(pixel, k, 1, kSize);
  });
}

template <Direction kDirection, class Full, class Part>
void copy_of_any_size(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full,
                      Part* part) {
  switch (size_of(problem.dtype)) {
    case 2:
      return copy_channels<kDirection, 2>(problem, index, count, full, part);
    case 4:
      return copy_channels<kDirection, 4>(problem, index, count, full, part);
    default:
      return copy_channels<kDirection, 8>(problem, index, count, full, part);
  }
}

}  // namespace

void gather_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* full,
                     void* part) {
  copy_of_any_size<Direction::kGather>(problem, index, count, static_cast<const std::byte*>(full),
                                       static_cast<std::byte*>(part));
}

void scatter_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* part,
                      void* full) {
  copy_of_any_size<Direction::kScatter>(problem, index, count, static_cast<std::byte*>(full),
                                        static_cast<const std::byte*>(part));
}

}  // namespace palimpsest::kernels::cpu
