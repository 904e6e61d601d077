#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// The fused layer: batch normalization + activation over a dense (N, C, S) tensor.
///   y[n,c,s] = weight[c] * (x[n,c,s] - mean[c]) * inv_std[c] + bias[c],   z = act(y)
///
/// Every pointer argument:
///   x, z, dz, dx, xhat: shape.elements() values of `dtype`, all in the same `layout`, no alignment required.
///   weight, bias, mean, var, inv_std, sums: C values of accumulate_t<dtype> (f32; f64 for f64).
///   weight == nullptr means 1, bias == nullptr means 0. weight may have any sign.
/// Memory: at most 64 partial sums a channel (2 per image and channel for images of more than 64 Ki pixels),
/// kept by the calling thread for its next call. The result has the same bytes for any number of threads.
/// Throws std::invalid_argument for a dtype that has no kernels yet.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018; form II of its section 3.
namespace palimpsest::kernels {

/// What one call of the layer works on.
struct AbnLayer {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
};

namespace cpu {

/// mean[c] and the biased variance var[c] of x, summed around a pivot: never E[x^2] - E[x]^2, which loses all
/// digits where |mean| is large against the standard deviation.
void abn_statistics(const AbnLayer& layer, const void* x, void* mean, void* var);

/// z = act(weight * (x - mean) * inv_std + bias); z may be x. xhat (may be null): also writes (x - mean) *
/// inv_std.
void abn_apply(const AbnLayer& layer, const void* x, const void* mean, const void* inv_std,
               const void* weight, const void* bias, void* z, void* xhat);

/// Training forward: statistics, inv_std = 1/sqrt(var + eps), apply; in NCHW with a channel's slab in cache
/// between them. Writes z (may be x), xhat (may be null), mean, var, inv_std. The mean that is subtracted is
/// the f64 one: for f32, where mean is stored rounded, statistics followed by apply give the same z up to
/// that rounding.
void abn_forward(const AbnLayer& layer, double eps, const void* x, const void* weight, const void* bias,
                 void* z, void* xhat, void* mean, void* var, void* inv_std);

/// sum_dy[c] = sum of dy, sum_dy_xhat[c] = sum of dy * xhat, where dy = dz * act'(y) and both y and xhat are
/// recovered from z, or xhat is read where it was kept (not null: needed where |weight| is degenerate). These
/// are the gradients of bias and weight. ELU's y is recovered from z = -alpha (saturation) as the lowest y
/// that z could stand for.
void abn_backward_reduce(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                         const void* weight, const void* bias, void* sum_dy, void* sum_dy_xhat);

/// dx = weight * inv_std * (dy - sum_dy/m - xhat * sum_dy_xhat/m); dx may be dz. Null sums: frozen statistics
/// (eval mode), dx = weight * inv_std * dy. `m` is the number of values behind the sums (N*S, more if
/// synchronized).
void abn_backward_apply(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                        const void* weight, const void* bias, const void* inv_std, const void* sum_dy,
                        const void* sum_dy_xhat, double m, void* dx);

/// Reduce and apply, m = N*S; in NCHW with a channel's slab in cache between them. dx may be dz. The same
/// bytes as the two calls.
void abn_backward(const AbnLayer& layer, const void* z, const void* xhat, const void* dz, const void* weight,
                  const void* bias, const void* inv_std, void* sum_dy, void* sum_dy_xhat, void* dx);

/// The instruction set in use: "x86-64-v2", "x86-64-v3", "x86-64-v4" or "native". Picked once, at first use;
/// PALIMPSEST_ISA in the environment forces one (an unknown or unsupported name throws
/// std::invalid_argument).
const char* instruction_set();

}  // namespace cpu

/// The same functions as plain loops in double: the truth of the tests.
namespace reference {

void abn_statistics(const AbnLayer& layer, const void* x, void* mean, void* var);
void abn_apply(const AbnLayer& layer, const void* x, const void* mean, const void* inv_std,
               const void* weight, const void* bias, void* z, void* xhat);
void abn_forward(const AbnLayer& layer, double eps, const void* x, const void* weight, const void* bias,
                 void* z, void* xhat, void* mean, void* var, void* inv_std);
void abn_backward_reduce(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                         const void* weight, const void* bias, void* sum_dy, void* sum_dy_xhat);
void abn_backward_apply(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                        const void* weight, const void* bias, const void* inv_std, const void* sum_dy,
                        const void* sum_dy_xhat, double m, void* dx);
void abn_backward(const AbnLayer& layer, const void* z, const void* xhat, const void* dz, const void* weight,
                  const void* bias, const void* inv_std, void* sum_dy, void* sum_dy_xhat, void* dx);

}  // namespace reference
}  // namespace palimpsest::kernels
