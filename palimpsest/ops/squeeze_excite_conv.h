#pragma once

#include "palimpsest/kernels/activation.h"
#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// An activation, the gates of a squeeze-and-excitation, and a convolution in one node of the graph, which
/// saves one full-size tensor:
///   z           = act(y)
///   pooled[n,c] = mean over h, w of z[n,c,h,w]
///   gate[n,c]   = gate_act(excite . squeeze_act(squeeze . pooled[n] + squeeze_bias) + excite_bias)
///   result      = conv(z * gate)
/// Separate layers save y, z and z * gate. This node saves y and the two tensors of size (N, C), and computes z
/// and z * gate again for the gradient of the convolution's weight. If act is the identity, y is the output
/// of the layer before, which saves it in any case.
/// Sources: Hu, Shen, Sun, "Squeeze-and-Excitation Networks", CVPR 2018; saving y alone is ours.
namespace palimpsest::ops {

enum class SqueezeActivation { kReLU, kSiLU };
enum class GateActivation { kSigmoid, kHardSigmoid };

/// The two linear layers between the means and the gates. squeeze_weight: (R, C) or (R, C, 1, 1);
/// excite_weight: (C, R) or (C, R, 1, 1); biases: (R) and (C).
struct SqueezeExcitation {
  at::Tensor squeeze_weight, squeeze_bias, excite_weight, excite_bias;
  SqueezeActivation squeeze_activation = SqueezeActivation::kReLU;
  GateActivation gate_activation = GateActivation::kSigmoid;
};

/// Returns the result above. y: (N, C, H, W), f32, f64, f16 or bf16; conv_weight: (C_out, C / groups, kh, kw);
/// conv_bias: (C_out) or none. Means and gates are computed in f32 (f64 for f64 y), also under autocast, where
/// the convolution runs in autocast's dtype (ops/autocast.h).
/// Gradients: y, the four tensors of `excitation`, conv_weight and conv_bias, each only if it requires one.
/// Double backward is an error. Errors: c10::Error "[squeeze_excite_conv] requirement, got value".
at::Tensor squeeze_excite_conv(const at::Tensor& y, const SqueezeExcitation& excitation,
                               const at::Tensor& conv_weight, const std::optional<at::Tensor>& conv_bias,
                               const ConvolutionOptions& convolution, Activation activation,
                               double activation_param);

/// Returns conv(act(y) * gate) for gates that are given, such as the factors of feature dropout. Saves y and the
/// gates, and computes act(y) * gate again for the gradient of the convolution's weight. gate: (N, C), f32 (f64
/// for f64 y), without a gradient. All else as above; errors begin with "[gated_conv]".
at::Tensor gated_conv(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& conv_weight,
                      const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                      Activation activation, double activation_param);

}  // namespace palimpsest::ops
