#include "palimpsest/kernels/cuda/dense_block.h"

#include "palimpsest/kernels/cuda/dense_block/kernels.cuh"
#include "palimpsest/kernels/cuda/device/workspace.cuh"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {
namespace {

// As abn.cu has them: several waves of blocks on the largest device, and fixed, as sums must not depend on
// it.
constexpr int64_t kDenseBlocks = 4096, kDenseColumnSumBlocks = 2048;
constexpr int64_t kMostColumnSegments = 256;  // which one block puts together in 1 to 2 us
constexpr int64_t kLeastVectors = 4;
static_assert(kDenseBlocks / 2 <= kMostPanelsInSegments);
constexpr int64_t kMostPieces = (int64_t{1} << 31) - (1 << 16);

/// How a launch over c channels of a buffer is made. `vectors`: 16 bytes at a time.
struct DenseLaunch {
  DenseCut cut;
  bool planes = true, vectors = false;

  LaunchShape shape() const { return {.blocks = int64_t{cut.panels} * cut.segments, .threads = kThreads}; }
};

template <class S>
bool dense_vectors(Layout layout, int64_t c, int64_t total, int64_t s,
                   std::initializer_list<const void*> tensors) {
  constexpr int V = kLanes<S>;
  bool fits = V > 1 && (layout == Layout::kNCHW ? s % V == 0 : c % V == 0 && total % V == 0);
  for (const void* tensor : tensors) fits = fits && reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
  return fits;
}

template <class S>
DenseLaunch dense_launch(int64_t n, int64_t s, int64_t c, int64_t total, Layout layout, bool vectors,
                         bool sums) {
  DenseLaunch l;
  l.planes = layout == Layout::kNCHW;
  l.vectors = vectors;
  const int64_t lanes = vectors ? kLanes<S> : 1, wide = vectors ? kApplyPanel : kScalarPanel;
  const int64_t panels = l.planes ? c : ceil_divide(c, wide * lanes), pieces = n * (l.planes ? s / lanes : s);
  if (std::max({panels, pieces, s}) > kMostPieces)
    throw std::invalid_argument("[dense_block] a tensor may have up to 2^31 - 2^16 pixels on a GPU, got " +
                                std::to_string(n) + " images of " + std::to_string(s) + ": split the batch");
  l.cut = {c, total, s, static_cast<int>(panels), static_cast<int>(pieces), 1};
  const int64_t blocks = sums && !l.planes ? kDenseColumnSumBlocks : kDenseBlocks;
  const int64_t most = sums && !l.planes ? kMostColumnSegments : kDenseBlocks;
  const int64_t of_panel = pieces * (l.planes ? 1 : wide);
  const int64_t segments = std::min({blocks / panels, of_panel / (kThreads * kLeastVectors), most});
  l.cut.segments = static_cast<int>(std::max<int64_t>(1, segments));
  return l;
}

template <class S>
DenseLaunch dense_launch(const DenseProductProblem& l, bool sums,
                         std::initializer_list<const void*> tensors) {
  return dense_launch<S>(l.n, l.s, l.c, l.total, l.layout,
                         dense_vectors<S>(l.layout, l.c, l.total, l.s, tensors), sums);
}

/// Calls function.template operator()<Walk>().
template <class S, class Function>
void with_dense_walk(const DenseLaunch& l, const Function& function) {
  constexpr int V = kLanes<S>;
  if constexpr (V > 1)
    if (l.vectors)
      return l.planes ? function.template operator()<DensePlanes<S, V, kThreads>>()
                      : function.template operator()<DenseColumns<S, V, kThreads, kApplyPanel>>();
  l.planes ? function.template operator()<DensePlanes<S, 1, kThreads>>()
           : function.template operator()<DenseColumns<S, 1, kThreads, kScalarPanel>>();
}

template <class S>
DenseNormArguments<S> norm_arguments(const DenseProductProblem& layer, const DenseStatistics& norm) {
  using T = MathsOf<S>;
  const double slope = layer.activation == Activation::kReLU        ? 0
                       : layer.activation == Activation::kLeakyReLU ? layer.activation_param
                                                                    : 1;
  return {norm.mean,
          norm.var,
          static_cast<const T*>(norm.weight),
          static_cast<const T*>(norm.bias),
          norm.eps,
          layer.activation == Activation::kReLU,
          static_cast<T>(slope)};
}

bool is_empty(const DenseProductProblem& layer) {
  return layer.n * layer.s * layer.c == 0;
}

}  // namespace

void dense_normalize(const DenseProductProblem& layer, const DenseStatistics& norm,
                     const RunningStatistics& running, const void* x, void* z, Stream stream) {
  if (is_empty(layer)) return;
  const auto m = static_cast<double>(layer.n * layer.s);
  dispatch_float(layer.dtype, [&]<class S>() {
    using T = MathsOf<S>;
    const DenseLaunch l = dense_launch<S>(layer, false, {x, z});
    const DenseRunning<T> moved{static_cast<T*>(running.mean), static_cast<T*>(running.var), running.momentum,
                                m / (m - 1)};
    with_dense_walk<S>(l, [&]<class Walk>() {
      launch("dense_normalize", l.shape(), stream, dense_normalize_kernel<S, Walk>, l.cut,
             norm_arguments<S>(layer, norm), moved, static_cast<const S*>(x), static_cast<S*>(z));
    });
  });
}

int64_t dense_workspace_bytes(const DenseProductProblem& layer) {
  int segments = 1;
  if (!is_empty(layer))
    dispatch_float(layer.dtype, [&]<class S>() {
      for (const bool vectors : {false, true})  // whatever the addresses will be
        segments = std::max(segments, dense_launch<S>(layer.n, layer.s, layer.c, layer.total, layer.layout,
                                                      vectors && kLanes<S> > 1, true)
                                          .cut.segments);
    });
  return kCounterBytes + (segments > 1 ? segments * layer.c * static_cast<int64_t>(sizeof(GradientSums)) : 0);
}

void dense_normalize_backward(const DenseProductProblem& layer, const DenseStatistics& norm,
                              const DenseNormalizeBackward& t, const Queue& queue) {
  if (is_empty(layer)) return;
  dispatch_float(layer.dtype, [&]<class S>() {
    using T = MathsOf<S>;
    const DenseLaunch l = dense_launch<S>(layer, true, {t.x, t.dz, t.gradient});
    const DenseBackwardArguments<S> arguments{static_cast<const S*>(t.x),
                                              static_cast<S*>(t.dz),
                                              static_cast<T*>(t.gradient),
                                              static_cast<T*>(t.dweight),
                                              static_cast<T*>(t.dbias),
                                              t.constant,
                                              t.per_deviation,
                                              t.makes_z,
                                              static_cast<double>(layer.n * layer.s)};
    with_dense_walk<S>(l, [&]<class Walk>() {
      launch("dense_normalize_backward", l.shape(), queue.stream, dense_normalize_backward_kernel<S, Walk>,
             l.cut, norm_arguments<S>(layer, norm), arguments, workspace_of(queue));
    });
  });
}

void dense_feature_gradient(const DenseFeatureProblem& f, const DenseCorrection& k, const void* x,
                            const void* gradient, void* df, Stream stream) {
  if (f.n * f.s * f.count == 0) return;
  const int64_t begin = f.first * (f.layout == Layout::kNCHW ? f.s : 1);
  dispatch_float(f.dtype, [&]<class S>() {
    using T = MathsOf<S>;
    const DenseFeatureArguments<S> arguments{static_cast<const S*>(x) + begin,
                                             static_cast<const T*>(gradient) + begin,
                                             static_cast<S*>(df),
                                             k.mean,
                                             k.constant,
                                             k.per_deviation};
    const bool vectors =
        dense_vectors<S>(f.layout, f.count, f.total, f.s, {arguments.x, arguments.gradient, arguments.df});
    const DenseLaunch l = dense_launch<S>(f.n, f.s, f.count, f.total, f.layout, vectors, false);
    with_dense_walk<S>(l, [&]<class Walk>() {
      launch("dense_feature_gradient", l.shape(), stream, dense_feature_gradient_kernel<S, Walk>, l.cut,
             arguments);
    });
  });
}

}  // namespace palimpsest::kernels::cuda
