#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::benchmarks {

/// Passes over the memory of contiguous tensors from the beginning, in words of 8 bytes, with an instruction or two per
/// word: what memory alone takes, but for what a cache still holds from the pass before. On libtorch's threads, each of
/// which takes one run of words. The bytes after the last whole word are left out.

/// Reads x.
void read_pass(const at::Tensor& x);
/// Reads x and y, of the same size: two passes.
void read_pass(const at::Tensor& x, const at::Tensor& y);
/// Reads x and writes it: two passes.
void update_pass(const at::Tensor& x);
/// Reads x and y, of the same size, and writes y: three passes.
void update_pass(const at::Tensor& x, const at::Tensor& y);

}  // namespace palimpsest::benchmarks
