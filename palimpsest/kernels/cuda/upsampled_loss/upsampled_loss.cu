#include "palimpsest/kernels/cuda/upsampled_loss.h"

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/upsampling.h"

#include <algorithm>
#include <cmath>

namespace palimpsest::kernels::cuda {
namespace {

/// Parts of a sum. One block adds them up, so their number is bounded; it depends on the shape only.
constexpr int64_t kMostParts = 4096;
constexpr int kSums = 4;
constexpr double kNoPlace = 1e18;

int64_t pixels_of(const UpsampledProblem& p) {
  return p.n * p.out.h * p.out.w;
}
int64_t parts_of(const UpsampledProblem& p) {
  return std::min(kMostParts, ceil_divide(pixels_of(p), int64_t{kThreads}));
}

/// One dimension. Its pixels read at * scale + shift, at least 0 (upsampled_loss.h).
struct Axis {
  int in, out;
  double scale, shift;
};

Axis axis_of(int64_t in, int64_t out, bool align_corners) {
  const auto wide_in = static_cast<double>(in), wide_out = static_cast<double>(out);
  const double scale = !align_corners ? wide_in / wide_out : out > 1 ? (wide_in - 1) / (wide_out - 1) : 0;
  return {static_cast<int>(in), static_cast<int>(out), scale, align_corners ? 0 : 0.5 * scale - 0.5};
}

/// A problem as the kernels take it, with few and narrow numbers: registers are scarce.
struct Geometry {
  Axis rows, columns;
  int classes;
  int64_t n;
  int64_t to_class, to_row, to_column;  ///< strides of the small map

  __device__ __forceinline__ int64_t map_values() const { return int64_t{rows.in} * columns.in * classes; }
  __device__ __forceinline__ int64_t pixels() const { return int64_t{rows.out} * columns.out; }
};

Geometry geometry_of(const UpsampledProblem& p) {
  const bool planes = p.layout == Layout::kNCHW;
  return {axis_of(p.in.h, p.out.h, p.align_corners),
          axis_of(p.in.w, p.out.w, p.align_corners),
          static_cast<int>(p.c),
          p.n,
          planes ? p.in.h * p.in.w : 1,
          planes ? p.in.w : p.in.w * p.c,
          planes ? 1 : p.c};
}

/// Returns the weight of the second of the two map rows (columns) that a pixel reads, and the number of the
/// first in `first`.
__device__ __forceinline__ double source(const Axis& axis, int pixel, int& first) {
  double at = pixel * axis.scale + axis.shift;
  at = at < 0 ? 0 : at;
  first = static_cast<int>(at);
  first = first > axis.in - 1 ? axis.in - 1 : first;
  return first + 1 < axis.in ? at - first : 0;
}

/// The four values of the small map that a pixel reads. S: the type of x, T: of the arithmetic.
template <class T, class S>
struct Corners {
  const S* top_left;
  int64_t to_right, to_bottom;  // 0 with a weight of 0: what lies beyond might be NaN, or no pixel
  T v, u;                       // weights of the bottom row and of the right column

  __device__ __forceinline__ Corners(const Geometry& g, const S* x, int64_t pixel) {
    const int in_image = static_cast<int>(pixel % g.pixels());
    int row = 0, column = 0;
    v = static_cast<T>(source(g.rows, in_image / g.columns.out, row));
    u = static_cast<T>(source(g.columns, in_image % g.columns.out, column));
    top_left = x + pixel / g.pixels() * g.map_values() + row * g.to_row + column * g.to_column;
    to_right = u > 0 ? g.to_column : 0;
    to_bottom = v > 0 ? g.to_row : 0;
  }
  __device__ __forceinline__ T logit(int64_t offset) const {
    // Rows first, as in the gradient.
    const S* const at = top_left + offset;
    const T left = along(at, to_bottom, v);
    return u > 0 ? left * (1 - u) + along(at + to_right, to_bottom, v) * u : left;
  }
  __device__ __forceinline__ static T along(const S* at, int64_t to_next, T weight) {
    const T first = static_cast<T>(at[0]);
    return weight > 0 ? first * (1 - weight) + static_cast<T>(at[to_next]) * weight : first;
  }
};

__device__ __forceinline__ bool counts(int classes, const CrossEntropyTargets& targets,
                                       const uint8_t* selected, int64_t pixel, int64_t& t) {
  t = target_at(targets, pixel);
  return t != targets.ignored && t >= 0 && t < classes && (selected == nullptr || selected[pixel] != 0);
}

__device__ __forceinline__ double weight_of(const CrossEntropyRules& rules, int64_t c) {
  return rules.weight == nullptr ? 1 : rules.weight[c];
}

__device__ __forceinline__ double all_weights(const CrossEntropyRules& rules, int classes) {
  if (rules.weight == nullptr) return classes;
  double all = 0;
  for (int c = 0; c < classes; ++c) all += rules.weight[c];
  return all;
}

/// Returns the largest logit of a pixel, and log sum_c exp(z[c] - largest) in `log_sum`.
template <class T, class S>
__device__ __forceinline__ T largest_logit(const Geometry& g, const Corners<T, S>& corners, T& log_sum) {
  T largest = corners.logit(0);
  PALIMPSEST_NO_UNROLL
  for (int c = 1; c < g.classes; ++c) {
    const T z = corners.logit(c * g.to_class);
    largest = z > largest ? z : largest;
  }
  T sum = 0;
  PALIMPSEST_NO_UNROLL
  for (int c = 0; c < g.classes; ++c) sum += Math<T>::exp(corners.logit(c * g.to_class) - largest);
  log_sum = Math<T>::log(sum);
  return largest;
}

/// Returns the sums over a block, in thread 0 and in the order of the threads; of `wrong` the least.
__device__ __forceinline__ void write_block_sums(double (&sums)[kSums - 1], double wrong, double* out) {
  block_sum<kThreads>(sums);
  PALIMPSEST_SHARED(places, double[kThreads]);
  places[threadIdx.x] = wrong;
  __syncthreads();
  if (threadIdx.x != 0) return;
  PALIMPSEST_NO_UNROLL
  for (int i = 0; i < kThreads; ++i) wrong = places[i] < wrong ? places[i] : wrong;
  for (int k = 0; k < kSums - 1; ++k) out[k] = sums[k];
  out[kSums - 1] = wrong;
}

/// Grid: parts_of() blocks of kThreads threads, each of which takes a pixel every gridDim * kThreads ones.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    upsampled_losses_kernel(Geometry g, const T* x, CrossEntropyTargets targets, CrossEntropyRules rules,
                            const uint8_t* selected, double* log_sums, double* parts) {
  const int64_t pixels = g.n * g.pixels();
  double sums[kSums - 1] = {0, 0, 0}, wrong = kNoPlace;
  PALIMPSEST_NO_UNROLL
  for (int64_t pixel = int64_t{blockIdx.x} * kThreads + threadIdx.x; pixel < pixels;
       pixel += int64_t{gridDim.x} * kThreads) {
    int64_t t = 0;
    const bool one = counts(g.classes, targets, selected, pixel, t);
    if (t != targets.ignored && (t < 0 || t >= g.classes) && static_cast<double>(pixel) < wrong)
      wrong = static_cast<double>(pixel);
    log_sums[pixel] = 0;
    if (!one) continue;
    const Corners<T, T> corners(g, x, pixel);
    T log_sum = 0;
    const T largest = largest_logit(g, corners, log_sum);
    log_sums[pixel] = static_cast<double>(largest) + static_cast<double>(log_sum);
    const double w = weight_of(rules, t), e = rules.label_smoothing;
    sums[0] += (1 - e) * w * (static_cast<double>(largest - corners.logit(t * g.to_class)) + log_sum);
    sums[1] += w;
    sums[2] += 1;
    if (e == 0) continue;
    double smooth = all_weights(rules, g.classes) * log_sum;
    PALIMPSEST_NO_UNROLL
    for (int c = 0; c < g.classes; ++c)
      smooth += weight_of(rules, c) * static_cast<double>(largest - corners.logit(c * g.to_class));
    sums[0] += e / g.classes * smooth;
  }
  write_block_sums(sums, wrong, parts + int64_t{blockIdx.x} * kSums);
}

/// Grid: one block, whose threads add up the parts in a fixed order.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const double* parts, int64_t count, double* out) {
  double sums[kSums - 1] = {0, 0, 0}, wrong = kNoPlace;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    for (int k = 0; k < kSums - 1; ++k) sums[k] += parts[i * kSums + k];
    const double place = parts[i * kSums + kSums - 1];
    wrong = place < wrong ? place : wrong;
  }
  write_block_sums(sums, wrong, out);
}

/// Grid: one thread per pixel. In f64 for any x, so that the order of pixels is that of the reference.
template <class S>
__global__ void __launch_bounds__(kThreads, 4)
    upsampled_hardness_kernel(Geometry g, const S* x, CrossEntropyTargets targets, double* hardness) {
  const int64_t pixel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pixel >= g.n * g.pixels()) return;
  int64_t t = 0;
  double hard = -HUGE_VAL;
  if (counts(g.classes, targets, nullptr, pixel, t)) {
    const Corners<double, S> corners(g, x, pixel);
    double log_sum = 0;
    const double largest = largest_logit(g, corners, log_sum);
    hard = log_sum + (largest - corners.logit(t * g.to_class));
    hard = hard == hard ? hard : HUGE_VAL;
  }
  hardness[pixel] = hard;
}

/// Returns the first pixel along one dimension that reads from map row (column) `at` or a later one.
__device__ __forceinline__ int first_pixel(const Axis& axis, int at) {
  int low = 0, high = axis.out;
  PALIMPSEST_NO_UNROLL
  while (low < high) {
    const int middle = low + (high - low) / 2;
    int first = 0;
    source(axis, middle, first);
    if (first < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// Grid: one thread per value of x, which gathers from the pixels around it: four quadrants, in rows.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    upsampled_gradient_kernel(Geometry g, const T* x, CrossEntropyTargets targets, CrossEntropyRules rules,
                              const uint8_t* selected, const double* log_sums, T* gradient) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= g.n * g.map_values()) return;
  const int n = static_cast<int>(i / g.map_values());
  const auto in_map = i % g.map_values();
  const int c = static_cast<int>(in_map / g.to_class % g.classes);
  const int h = static_cast<int>(in_map / g.to_row % g.rows.in),
            w = static_cast<int>(in_map / g.to_column % g.columns.in);
  const T e = static_cast<T>(rules.label_smoothing);
  const T even = e > 0 ? e * static_cast<T>(all_weights(rules, g.classes) / g.classes) : 0;
  const T offset = e > 0 ? e * static_cast<T>(weight_of(rules, c) / g.classes) : 0;
  T total = 0;
  PALIMPSEST_NO_UNROLL
  for (int quadrant = 0; quadrant < 4; ++quadrant) {
    const bool above = quadrant < 2, before = quadrant % 2 == 0;
    if ((above && h == 0) || (before && w == 0)) continue;
    const T* const corner = x + i - (above ? g.to_row : 0) - (before ? g.to_column : 0);
    const int64_t to_right = before || w + 1 < g.columns.in ? g.to_column : 0;
    const int64_t to_bottom = above || h + 1 < g.rows.in ? g.to_row : 0;
    const int end_y = first_pixel(g.rows, h + (above ? 0 : 1)),
              end_x = first_pixel(g.columns, w + (before ? 0 : 1));
    const int begin_x = first_pixel(g.columns, w - (before ? 1 : 0));
    PALIMPSEST_NO_UNROLL
    for (int y = first_pixel(g.rows, h - (above ? 1 : 0)); y < end_y; ++y) {
      int first = 0;
      const T v = static_cast<T>(source(g.rows, y, first));
      // A weight of 0 stays on the row: what lies beyond might be NaN.
      const T left = v > 0 ? corner[0] * (1 - v) + corner[to_bottom] * v : corner[0];
      const T right =
          v > 0 ? corner[to_right] * (1 - v) + corner[to_bottom + to_right] * v : corner[to_right];
      const int64_t row = (int64_t{n} * g.rows.out + y) * g.columns.out;
      T of_row = 0;
      PALIMPSEST_NO_UNROLL
      for (int column = begin_x; column < end_x; ++column) {
        int64_t t = 0;
        if (!counts(g.classes, targets, selected, row + column, t)) continue;
        const T u = static_cast<T>(source(g.columns, column, first));
        const T z = u > 0 ? left * (1 - u) + right * u : left;
        const T hit = (1 - e) * static_cast<T>(weight_of(rules, t));
        T d = Math<T>::exp(static_cast<T>(static_cast<double>(z) - log_sums[row + column])) * (hit + even) -
              offset;
        d = t == c ? d - hit : d;
        of_row += d * (before ? u : 1 - u);
      }
      total += of_row * (above ? v : 1 - v);
    }
  }
  gradient[i] = total;
}

/// Grid: one thread per pixel of the images.
template <class T>
__global__ void __launch_bounds__(kThreads, 4) upsampled_argmax_kernel(Geometry g, const T* x, int64_t* ids) {
  const int64_t pixel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pixel >= g.n * g.pixels()) return;
  const Corners<T, T> corners(g, x, pixel);
  T best = corners.logit(0);
  int id = 0;
  PALIMPSEST_NO_UNROLL
  for (int c = 1; c < g.classes; ++c) {
    const T z = corners.logit(c * g.to_class);
    if (z > best || (z != z && best == best)) {
      best = z;
      id = c;
    }
  }
  ids[pixel] = id;
}

LaunchShape blocks_for(int64_t threads) {
  return {.blocks = ceil_divide(threads, int64_t{kThreads}), .threads = kThreads};
}

template <class Function>
void dispatch(DType dtype, const Function& function) {
  if (dtype == DType::f64)
    function(double{});
  else
    function(float{});
}

}  // namespace

int64_t upsampled_losses_workspace_bytes(const UpsampledProblem& problem) {
  return parts_of(problem) * kSums * static_cast<int64_t>(sizeof(double));
}

void upsampled_losses(const UpsampledProblem& problem, const void* x, const CrossEntropyTargets& targets,
                      const CrossEntropyRules& rules, const uint8_t* selected, const UpsampledLosses& out,
                      Stream stream) {
  const int64_t parts = parts_of(problem);
  auto* const workspace = static_cast<double*>(out.workspace);
  dispatch(problem.dtype, [&]<class T>(T) {
    if (parts == 0) return;
    launch("upsampled_losses", {.blocks = parts, .threads = kThreads}, stream, upsampled_losses_kernel<T>,
           geometry_of(problem), static_cast<const T*>(x), targets, rules, selected, out.log_sum, workspace);
    if (out.hardness != nullptr)
      launch("upsampled_losses", blocks_for(pixels_of(problem)), stream, upsampled_hardness_kernel<T>,
             geometry_of(problem), static_cast<const T*>(x), targets, out.hardness);
  });
  launch("upsampled_losses", {.blocks = 1, .threads = kThreads}, stream, add_parts_kernel,
         static_cast<const double*>(workspace), parts, out.sums);
}

void upsampled_gradient(const UpsampledProblem& problem, const void* x, const CrossEntropyTargets& targets,
                        const CrossEntropyRules& rules, const uint8_t* selected, const double* log_sum,
                        void* gradient, Stream stream) {
  const int64_t values = problem.n * problem.c * problem.in.h * problem.in.w;
  if (values == 0) return;
  dispatch(problem.dtype, [&]<class T>(T) {
    launch("upsampled_gradient", blocks_for(values), stream, upsampled_gradient_kernel<T>,
           geometry_of(problem), static_cast<const T*>(x), targets, rules, selected, log_sum,
           static_cast<T*>(gradient));
  });
}

void upsampled_argmax(const UpsampledProblem& problem, const void* x, int64_t* ids, Stream stream) {
  if (pixels_of(problem) == 0) return;
  dispatch(problem.dtype, [&]<class T>(T) {
    launch("upsampled_argmax", blocks_for(pixels_of(problem)), stream, upsampled_argmax_kernel<T>,
           geometry_of(problem), static_cast<const T*>(x), ids);
  });
}

}  // namespace palimpsest::kernels::cuda
