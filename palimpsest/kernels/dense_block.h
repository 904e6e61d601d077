#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// What a layer of a densely connected block does to the block's buffer, which holds the features of all
/// layers, each in its slot of channels. A layer reads the first `c` channels through its own normalization
/// and activation, and a 1x1 convolution makes `out` channels of them:
///   z[n,c,s] = act((x[n,c,s] - mean[c]) * scale[c] + shift[c]),   h[n,o,s] = sum over c of w[o,c] * z[n,c,s]
/// z exists for some pixels at a time, in a scratch of the thread that stays in its second cache.
///
/// Pointers: x (N, total, S), of which channels [0, c) are read; h, dh (N, out, S); w (out, c); all dense, of
/// `dtype`, x and h in `layout`, no alignment required. gradient (N, total, S), dw (out, c): accumulate_t, as
/// the maths (f32; f64 for f64). 16-bit z and h are rounded once. Vectors are f64, one value a channel.
/// Sums have the same bytes for any number of threads. Memory: two scratches of at most 512 KiB a thread (16
/// rows at least), the weights once more, and at most 8 MiB (one dw at least) of partial sums; kept by the
/// threads for their next calls.
/// Source: Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017; the
/// shared statistics and the deferred correction are ours.
namespace palimpsest::kernels {

struct DenseProduct {
  int64_t n = 0, s = 0;  ///< images, pixels of each
  int64_t c = 0;         ///< channels that are read, the buffer's first
  int64_t total = 0;     ///< channels of the buffer
  int64_t out = 0;       ///< channels that are made
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kReLU;  ///< ReLU, leaky ReLU or the identity: see has_dense_product
  double activation_param = 0;
};

/// Whether the kernels know the activation: those whose derivative is read off the sign of z.
constexpr bool has_dense_product(Activation activation) {
  return activation == Activation::kReLU || activation == Activation::kLeakyReLU ||
         activation == Activation::kIdentity;
}

/// c values each.
struct DenseNormalization {
  const double* mean;
  const double* scale;
  const double* shift;
};

struct DenseProductBackward {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* dh = nullptr;
  const double* per_dy = nullptr;  ///< what gradient takes of dy; read where gradient is not null
  void* gradient = nullptr;        ///< may be null
  void* dw = nullptr;              ///< may be null
  double* sum_dy = nullptr;        ///< null where the two sums are not needed
  double* sum_dy_x = nullptr;
};

/// The gradient that arrives at `count` channels of the buffer, from `first` on, when all of their readers
/// have added theirs.
struct DenseFeatures {
  int64_t n = 0, s = 0;
  int64_t first = 0, count = 0, total = 0;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
};

/// count values each.
struct DenseCorrection {
  const double* mean;
  const double* constant;
  const double* per_deviation;
};

// In both namespaces below:
//
// dense_product: h from x.
// dense_product_backward, with dz = w^T dh and dy = dz * act'(y): dw = dh z^T, sum_dy[c] = sum of dy,
//   sum_dy_x[c] = sum of dy * (x - mean[c]), gradient[n,c,s] += per_dy[c] * dy. x is read once, gradient read
//   and written once, z and dz never leave the caches.
// dense_feature_gradient: df[n,j,s] = g - constant[j] - per_deviation[j] * (x - mean[j]), where g and x are
//   those of channel first + j. What batch normalization takes off the gradient is the same function of x for
//   every reader of a feature, so the readers' factors are added up and this is done once.
#define PALIMPSEST_DENSE_KERNELS                                                                \
  void dense_product(const DenseProduct& layer, const DenseNormalization& norm, const void* x,  \
                     const void* w, void* h);                                                   \
  void dense_product_backward(const DenseProduct& layer, const DenseNormalization& norm,        \
                              const DenseProductBackward& t);                                   \
  void dense_feature_gradient(const DenseFeatures& features, const DenseCorrection& correction, \
                              const void* x, const void* gradient, void* df);

namespace cpu {
PALIMPSEST_DENSE_KERNELS
}
/// The same as plain loops in double: the truth of the tests.
namespace reference {
PALIMPSEST_DENSE_KERNELS
}

}  // namespace palimpsest::kernels
