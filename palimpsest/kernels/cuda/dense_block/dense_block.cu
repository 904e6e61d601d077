#include "palimpsest/kernels/cuda/dense_block.h"

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/dense_block/kernels.cuh"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {
namespace {

using namespace dense_block_detail;

/// The contiguous tensor of c channels that a launch works on, and the buffer of `total` channels around it.
struct Channels {
  int64_t n, s, c, total;
  Layout layout;

  bool is_empty() const { return n * s * c == 0; }
};

Channels channels_of(const DenseProductProblem& problem) {
  return {problem.n, problem.s, problem.c, problem.total, problem.layout};
}

Channels channels_of(const DenseFeatureProblem& problem) {
  return {problem.n, problem.s, problem.count, problem.total, problem.layout};
}

/// How a launch divides the tensor.
struct Geometry {
  BufferCut cut;
  bool planes = true;
  bool vectors = false;  ///< threads access 16 bytes at a time; false: single values

  LaunchShape shape() const { return {.blocks = int64_t{cut.panels} * cut.segments, .threads = kThreads}; }
};

template <class S>
bool fits_vectors(const Channels& channels, std::initializer_list<const void*> tensors) {
  constexpr int V = kLanes<S>;
  bool fits = V > 1 && (channels.layout == Layout::kNCHW ? channels.s % V == 0
                                                         : channels.c % V == 0 && channels.total % V == 0);
  for (const void* tensor : tensors) fits = fits && reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
  return fits;
}

template <class S>
Geometry geometry_of(const Channels& channels, bool vectors, bool sums) {
  Geometry geometry;
  geometry.planes = channels.layout == Layout::kNCHW;
  geometry.vectors = vectors;
  const int64_t lanes = vectors ? kLanes<S> : 1, wide = vectors ? kPanel : kScalarPanel;
  const int64_t panels = geometry.planes ? channels.c : ceil_divide(channels.c, wide * lanes);
  const int64_t pieces = channels.n * (geometry.planes ? channels.s / lanes : channels.s);
  if (std::max({panels, pieces, channels.s}) > kMostPieces)
    throw std::invalid_argument("[dense_block] a tensor may have up to 2^31 - 2^16 pixels on a GPU, got " +
                                std::to_string(channels.n) + " images of " + std::to_string(channels.s) +
                                ": split the batch");
  const bool column_sums = sums && !geometry.planes;
  const int64_t blocks = column_sums ? kColumnReduceBlocks : kReduceBlocks;
  const int64_t most = column_sums ? kMostColumnSegments : kReduceBlocks;
  const int64_t panel_vectors = pieces * (geometry.planes ? 1 : wide);
  const int64_t segments = std::min({blocks / panels, panel_vectors / (kThreads * kLeastVectors), most});
  geometry.cut = {channels.c,
                  channels.total,
                  channels.s,
                  static_cast<int>(panels),
                  static_cast<int>(pieces),
                  static_cast<int>(std::max<int64_t>(1, segments))};
  return geometry;
}

/// Calls function.template operator()<Walk>().
template <class S, class Function>
void with_walk(const Geometry& geometry, const Function& function) {
  constexpr int V = kLanes<S>;
  if constexpr (V > 1)
    if (geometry.vectors)
      return geometry.planes ? function.template operator()<BufferPlanes<S, V, kThreads>>()
                             : function.template operator()<BufferColumns<S, V, kThreads, kPanel>>();
  geometry.planes ? function.template operator()<BufferPlanes<S, 1, kThreads>>()
                  : function.template operator()<BufferColumns<S, 1, kThreads, kScalarPanel>>();
}

template <class S>
NormArguments<S> norm_arguments(const DenseProductProblem& problem, const DenseStatistics& norm) {
  using T = accumulate_t<S>;
  const double slope = problem.activation == Activation::kReLU        ? 0
                       : problem.activation == Activation::kLeakyReLU ? problem.activation_param
                                                                      : 1;
  return {norm.mean,
          norm.var,
          static_cast<const T*>(norm.weight),
          static_cast<const T*>(norm.bias),
          norm.eps,
          slope == 0,
          static_cast<T>(slope)};
}

}  // namespace

void dense_normalize(const DenseProductProblem& problem, const DenseStatistics& norm,
                     const RunningStatistics& running, const void* x, void* z, Stream stream) {
  const Channels channels = channels_of(problem);
  if (channels.is_empty()) return;
  const auto m = static_cast<double>(channels.n * channels.s);
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const auto geometry = geometry_of<S>(channels, fits_vectors<S>(channels, {x, z}), false);
    const RunningArguments<T> moved{static_cast<T*>(running.mean), static_cast<T*>(running.var),
                                    running.momentum, m / (m - 1)};
    with_walk<S>(geometry, [&]<class Walk>() {
      launch("dense_normalize", geometry.shape(), stream, dense_normalize_kernel<S, Walk>, geometry.cut,
             norm_arguments<S>(problem, norm), moved, static_cast<const S*>(x), static_cast<S*>(z));
    });
  });
}

int64_t dense_workspace_bytes(const DenseProductProblem& problem) {
  const Channels channels = channels_of(problem);
  int segments = 1;
  if (!channels.is_empty())
    dispatch_float(problem.dtype, [&]<class S>() {
      for (const bool vectors : {false, true})  // the addresses are not known yet
        segments = std::max(segments, geometry_of<S>(channels, vectors && kLanes<S> > 1, true).cut.segments);
    });
  if (segments == 1) return 0;
  return segments * channels.c * static_cast<int64_t>(sizeof(GradientSums));
}

void dense_normalize_backward(const DenseProductProblem& problem, const DenseStatistics& norm,
                              const DenseNormalizeBackward& backward, const Queue& queue) {
  const Channels channels = channels_of(problem);
  if (channels.is_empty()) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const bool vectors = fits_vectors<S>(channels, {backward.x, backward.dz, backward.gradient});
    const auto geometry = geometry_of<S>(channels, vectors, true);
    const BackwardArguments<S> arguments{static_cast<const S*>(backward.x),
                                         static_cast<S*>(backward.dz),
                                         static_cast<T*>(backward.gradient),
                                         static_cast<T*>(backward.dweight),
                                         static_cast<T*>(backward.dbias),
                                         backward.constant,
                                         backward.per_deviation,
                                         backward.makes_z,
                                         static_cast<double>(channels.n * channels.s)};
    with_workspace(queue, geometry.cut.segments > 1, [&](const Workspace& workspace) {
      with_walk<S>(geometry, [&]<class Walk>() {
        launch("dense_normalize_backward", geometry.shape(), queue.stream,
               dense_normalize_backward_kernel<S, Walk>, geometry.cut, norm_arguments<S>(problem, norm),
               arguments, workspace);
      });
    });
  });
}

void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df, Stream stream) {
  const Channels channels = channels_of(problem);
  if (channels.is_empty()) return;
  const int64_t begin = problem.first * (problem.layout == Layout::kNCHW ? problem.s : 1);
  dispatch_float(problem.dtype, [&]<class S>() {
    const FeatureArguments<S> arguments{static_cast<const S*>(x) + begin,
                                        static_cast<const accumulate_t<S>*>(gradient) + begin,
                                        static_cast<S*>(df),
                                        correction.mean,
                                        correction.constant,
                                        correction.per_deviation};
    const bool vectors = fits_vectors<S>(channels, {arguments.x, arguments.gradient, arguments.df});
    const auto geometry = geometry_of<S>(channels, vectors, false);
    with_walk<S>(geometry, [&]<class Walk>() {
      launch("dense_feature_gradient", geometry.shape(), stream, dense_feature_gradient_kernel<S, Walk>,
             geometry.cut, arguments);
    });
  });
}

}  // namespace palimpsest::kernels::cuda
