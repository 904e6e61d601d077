#pragma once

// Bare passes over the memory of contiguous tensors: from the beginning, in words of 8 bytes, with an instruction or
// two per word. They take as long as memory does, but for what a cache still holds from the pass before. Each of
// libtorch's threads takes one run of words. The bytes after the last whole word are left out.

#include <ATen/core/Tensor.h>

namespace palimpsest::benchmarks {

/// Reads x.
void read_pass(const at::Tensor& x);
/// Reads x and y, of the same size: two passes.
void read_pass(const at::Tensor& x, const at::Tensor& y);
/// Reads x and writes it: two passes.
void update_pass(const at::Tensor& x);
/// Reads x and y, of the same size, and writes y: three passes.
void update_pass(const at::Tensor& x, const at::Tensor& y);

}  // namespace palimpsest::benchmarks
