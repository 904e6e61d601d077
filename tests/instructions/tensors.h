#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/random.h"
#include "tests/support/line_allocator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Inputs and outputs of kernels whose instructions are counted: the same numbers at the same alignment in
/// every run, made in few instructions.
namespace palimpsest::instructions {

template <class T>
using Tensor = std::vector<T, testing::LineAllocator<T>>;

/// Returns `size` numbers in [low, high). They repeat, because random numbers in 16 bits take long to make.
template <class T>
Tensor<T> uniform(int64_t size, double low, double high) {
  constexpr int64_t kPeriod = 1021;
  Random random(1);
  Tensor<T> values(static_cast<std::size_t>(size));
  for (int64_t i = 0; i < std::min(size, kPeriod); ++i) values[i] = static_cast<T>(random.uniform(low, high));
  for (int64_t i = kPeriod; i < size; i += kPeriod)
    std::copy_n(values.begin(), std::min(size - i, kPeriod), values.begin() + i);
  return values;
}

}  // namespace palimpsest::instructions
