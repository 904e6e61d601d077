#include "palimpsest/kernels/cuda/max_pool.h"

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/max_pool/kernels.cuh"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <type_traits>

namespace palimpsest::kernels::cuda {
namespace {

using namespace max_pool_detail;

/// Returns whether 32 bits hold every number of a vector, and every pixel of a window with its padding.
bool fits_32_bits(const MaxPoolProblem& problem, int vector) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - kThreads;
  const PoolWindow& p = problem.window;
  const auto reach = [](int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    return size + 2 * padding + std::max(kernel * dilation, stride);
  };
  const int64_t images = problem.planes() / vector;
  return images * problem.in.h * problem.in.w <= kMost && images * problem.out.h * problem.out.w <= kMost &&
         reach(problem.in.h, p.kernel_size.h, p.stride.h, p.padding.h, p.dilation.h) <= kMost &&
         reach(problem.in.w, p.kernel_size.w, p.stride.w, p.padding.w, p.dilation.w) <= kMost;
}

/// Calls function.operator()<N>(down, right) with the type of the indices and both dimensions of the window:
/// those of the common windows, 3x3 and 2x2 with stride 2, are known to the compiler.
template <class Function>
void with_axes(const MaxPoolProblem& problem, int vector, const Function& function) {
  const PoolWindow& p = problem.window;
  const auto any = [&]<class N>() {
    function.template operator()<N>(axis_of<N>(p.kernel_size.h, p.stride.h, p.padding.h, p.dilation.h),
                                    axis_of<N>(p.kernel_size.w, p.stride.w, p.padding.w, p.dilation.w));
  };
  if (!fits_32_bits(problem, vector)) return any.template operator()<int64_t>();
  const auto is_square = [&](int64_t size) {
    return p.kernel_size.h == size && p.kernel_size.w == size && p.stride.h == 2 && p.stride.w == 2 &&
           p.dilation.h == 1 && p.dilation.w == 1;
  };
  const auto fixed = [&]<int kKernel>() {
    using Axis = StepTwoAxis<kKernel>;
    function.template operator()<int32_t>(Axis{static_cast<int32_t>(p.padding.h)},
                                          Axis{static_cast<int32_t>(p.padding.w)});
  };
  if (is_square(3)) return fixed.template operator()<3>();
  if (is_square(2)) return fixed.template operator()<2>();
  any.template operator()<int32_t>();
}

/// Calls function.template operator()<V>() with the number of values per access: 16 bytes if channels are
/// neighbours and all addresses allow it, else one value.
template <class S, class Function>
void with_vector(const MaxPoolProblem& problem, std::initializer_list<const void*> tensors,
                 const void* argmax, const Function& function) {
  for (const int64_t size : {problem.in.h, problem.in.w, problem.out.h, problem.out.w}) counted(size);
  if (problem.layout == Layout::kChannelsLast) counted(problem.c);
  constexpr int V = kLanes<S>;
  if constexpr (V > 1) {
    bool aligned = problem.layout == Layout::kChannelsLast && problem.c % V == 0 &&
                   reinterpret_cast<uintptr_t>(argmax) % V == 0;
    for (const void* tensor : tensors) aligned &= reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
    if (aligned) return function.template operator()<V>();
  }
  function.template operator()<1>();
}

/// Returns the tiles of max_pool_backward_tiles_kernel per image.
Pair2 tiles_of(const MaxPoolProblem& problem) {
  const PoolWindow& p = problem.window;
  return {(problem.in.h + p.padding.h + 1) / 2, (problem.in.w + p.padding.w + 1) / 2};
}

LaunchShape blocks_for(int64_t vectors) {
  return {.blocks = ceil_divide(vectors, kThreads), .threads = kThreads};
}

}  // namespace

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax, Stream stream) {
  if (problem.planes() * problem.out.h * problem.out.w == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    with_vector<S>(problem, {x, z}, argmax, [&]<int V>() {
      with_axes(problem, V, [&]<class N, class Axis>(const Axis& down, const Axis& right) {
        const auto in = vectors_of<N>(problem, problem.in, V), out = vectors_of<N>(problem, problem.out, V);
        launch("max_pool_forward", blocks_for(out.count), stream, max_pool_forward_kernel<S, V, N, Axis>, in,
               out, down, right, static_cast<const S*>(x), static_cast<S*>(z), argmax);
      });
    });
  });
}

void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx,
                       Stream stream) {
  if (problem.planes() * problem.in.h * problem.in.w == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    with_vector<S>(problem, {dz, dx}, argmax, [&]<int V>() {
      with_axes(problem, V, [&]<class N, class Axis>(const Axis& down, const Axis& right) {
        const auto in = vectors_of<N>(problem, problem.in, V), out = vectors_of<N>(problem, problem.out, V);
        const auto* const typed_dz = static_cast<const S*>(dz);
        if constexpr (std::is_same_v<Axis, AnyAxis<N>>) {
          launch("max_pool_backward", blocks_for(in.count), stream, max_pool_backward_kernel<S, V, N, Axis>,
                 in, out, down, right, typed_dz, argmax, static_cast<S*>(dx));
        } else {
          const auto tiles = vectors_of<N>(problem, tiles_of(problem), V);
          launch("max_pool_backward", blocks_for(tiles.count), stream,
                 max_pool_backward_tiles_kernel<S, V, Axis::positions()>, tiles, in, out, down, right,
                 typed_dz, argmax, static_cast<S*>(dx));
        }
      });
    });
  });
}

}  // namespace palimpsest::kernels::cuda
