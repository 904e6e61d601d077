#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::benchmarks {

/// Passes over the memory of contiguous tensors, with an instruction or two per word: no kernel that reads and writes the
/// same takes much less time. On libtorch's threads, whose parts are neighbouring words. Tensors have 8 bytes or more.

/// Reads x.
void read_pass(const at::Tensor& x);
/// Reads x and y, of the same size.
void read_pass(const at::Tensor& x, const at::Tensor& y);
/// Reads x and writes it.
void update_pass(const at::Tensor& x);
/// Reads x and y, of the same size, and writes y.
void update_pass(const at::Tensor& x, const at::Tensor& y);

}  // namespace palimpsest::benchmarks
