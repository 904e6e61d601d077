#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest::kernels::cpu {

/// `floats` values on the boundary of a cache line, as a vector that lies across two costs two reads. Saved by
/// the thread for its next call with the same Purpose, since fresh memory costs a page fault for every 4 KiB;
/// what a call wrote is there until then.
template <class Purpose>
float* scratch(int64_t floats) {
  struct alignas(64) Line {
    float values[16];
  };
  thread_local std::vector<Line> kept;
  const auto lines = static_cast<std::size_t>(floats + 15) / 16;
  if (kept.size() < lines) kept.resize(lines);
  return kept.empty() ? nullptr : kept.data()->values;
}

}  // namespace palimpsest::kernels::cpu
