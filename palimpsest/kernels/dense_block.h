#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// A layer of a densely connected block works on the block's buffer, which holds the features of all layers,
/// each in its own channels. The layer reads the first `c` channels through its own normalization and
/// activation, and a 1x1 convolution makes `out` channels of them:
///   z[n,c,s] = act((x[n,c,s] - mean[c]) * scale[c] + shift[c]),   h[n,o,s] = sum over c of w[o,c] * z[n,c,s]
/// z exists for a few pixels at a time, in scratch memory of the thread that stays in its second-level cache.
///
/// Pointers: x (N, total, S), of which channels [0, c) are read; h, dh (N, out, S); w (out, c). All are
/// contiguous and of `dtype`, x and h in `layout`; no alignment is required. gradient (N, total, S), dw
/// (out, c): accumulate_t (f64 for f64, else f32). 16-bit z and h are rounded once. Vectors are f64, one
/// value per channel. Sums have the same bytes for any number of threads.
/// Memory: per thread a scratch buffer for z of about 192 KiB (or 16 pixels) and one for the same pixels of h, in NCHW
/// also of dh; for all threads together a packed copy of the weights, and at most 8 MiB (or one dw) of partial sums. The
/// threads keep this memory for their next calls.
/// Source: Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017; the
/// shared statistics and the deferred correction are ours.
namespace palimpsest::kernels {

/// The problem of one layer's product. All sizes are positive.
struct DenseProductProblem {
  int64_t n = 0, s = 0;  ///< images, pixels of each
  int64_t c = 0;         ///< channels that are read, from the buffer's first on
  int64_t total = 0;     ///< channels of the buffer
  int64_t out = 0;       ///< channels that are made
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kReLU;  ///< ReLU, leaky ReLU or the identity: see has_dense_product
  double activation_param = 0;
};

/// Returns whether the kernels have the activation: its derivative must follow from the sign of z.
constexpr bool has_dense_product(Activation activation) {
  return activation == Activation::kReLU || activation == Activation::kLeakyReLU ||
         activation == Activation::kIdentity;
}

/// The vectors of a normalization, c values each.
struct DenseNormalization {
  const double* mean;
  const double* scale;
  const double* shift;
};

struct DenseProductBackward {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* dh = nullptr;
  const double* per_dy = nullptr;  ///< factor of dy in `gradient`, c values; ignored if gradient is null
  void* gradient = nullptr;        ///< may be null
  void* dw = nullptr;              ///< may be null
  double* sum_dy = nullptr;        ///< both sums are null if they are not needed
  double* sum_dy_x = nullptr;
};

/// Channels [first, first + count) of the buffer, whose readers have all added their gradients.
struct DenseFeatureProblem {
  int64_t n = 0, s = 0;
  int64_t first = 0, count = 0, total = 0;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
};

/// The vectors of dense_feature_gradient, `count` values each.
struct DenseCorrection {
  const double* mean;
  const double* constant;
  const double* per_deviation;
};

namespace cpu {

/// Computes h from x.
void dense_product(const DenseProductProblem& problem, const DenseNormalization& norm, const void* x,
                   const void* w, void* h);

/// Computes dw = dh z^T, sum_dy[c] = sum of dy, sum_dy_x[c] = sum of dy * (x - mean[c]), and
/// gradient[n,c,s] += per_dy[c] * dy, where dz = w^T dh and dy = dz * act'(y). x is read once, gradient is
/// read and written once; z and dz never leave the caches.
void dense_product_backward(const DenseProductProblem& problem, const DenseNormalization& norm,
                            const DenseProductBackward& backward);

/// Computes df[n,j,s] = g - constant[j] - per_deviation[j] * (x - mean[j]), with g and x of channel first +
/// j. Batch normalization subtracts the same function of x from the gradient of every reader of a feature. So
/// the readers' factors are added up, and one call subtracts them.
void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df);

}  // namespace cpu

/// The same functions as plain loops in double, which are the reference of the tests.
namespace reference {

void dense_product(const DenseProductProblem& problem, const DenseNormalization& norm, const void* x,
                   const void* w, void* h);
void dense_product_backward(const DenseProductProblem& problem, const DenseNormalization& norm,
                            const DenseProductBackward& backward);
void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df);

}  // namespace reference
}  // namespace palimpsest::kernels
