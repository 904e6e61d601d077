#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest::kernels::cpu {

/// Returns memory for `floats` values. It begins on the boundary of a cache line, because a vector across two
/// lines costs two reads. The thread keeps the memory, with its values, for its next call with the same
/// Purpose: fresh memory costs a page fault per 4 KiB.
template <class Purpose>
float* scratch(int64_t floats) {
  struct alignas(64) Line {
    float values[16];
  };
  thread_local std::vector<Line> memory;
  const auto lines = static_cast<std::size_t>(floats + 15) / 16;
  if (memory.size() < lines) memory.resize(lines);
  return memory.empty() ? nullptr : memory.data()->values;
}

}  // namespace palimpsest::kernels::cpu
