#pragma once

#include <cstdint>

namespace palimpsest::kernels::cpu::conv2d {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Returns part `i` of `parts` equal parts of [0, count).
inline Range part(int64_t count, int64_t i, int64_t parts) {
  return {count * i / parts, count * (i + 1) / parts};
}

}  // namespace palimpsest::kernels::cpu::conv2d
