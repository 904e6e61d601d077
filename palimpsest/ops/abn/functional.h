#pragma once

#include "palimpsest/ops/abn.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

/// The operators under abn, abn_ and abn_conv: functional (or plainly mutating), without autograd, with CPU,
/// CUDA and Meta kernels, so that tracing records them as they are. The functions here go through libtorch's
/// dispatcher to them.
namespace palimpsest::ops {

using OptionalTensor = std::optional<at::Tensor>;

/// What every inner operator needs to know of the layer.
struct AbnSettings {
  OptionalTensor residual, weight, bias;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0;
  Saved keep = Saved::kOutput;
  bool relu_residual = false;
};

/// What a forward pass leaves, besides z.
struct AbnStatistics {
  at::Tensor mean;     ///< (C), f64: of this batch, or the frozen ones
  at::Tensor inv_std;  ///< (C), f64: 1 / sqrt(var + eps)
  /// The normalized x of degenerate channels, kept beside z (SideBuffer in ops/invertibility/saved_channels.h), u8. Its
  /// shape is (0) in any case, for shapes that tracing can know must not depend on values; the values lie in
  /// the storage behind.
  at::Tensor side;
  /// kOutputBit: on which branch each value lies, u8 (branch_bytes(elements)); undefined else.
  at::Tensor branch;
};

/// Inputs that forward has beside x. `running_mean`, `running_var`: if `training`, they move towards the
/// batch's statistics (where they are given); else they replace them. `for_backward`: a gradient may follow,
/// so degenerate channels keep their normalized x.
struct AbnForwardArguments {
  AbnSettings settings;
  OptionalTensor running_mean, running_var;
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
  bool for_backward = false;
};

/// z; what is kept in a tensor of its own (kPreActivation, kNormalized; undefined else); the rest.
struct AbnForwardResult {
  at::Tensor z, kept;
  AbnStatistics statistics;
};

AbnForwardResult call_forward(const at::Tensor& x, const AbnForwardArguments& arguments);
/// Writes over x: z, where that is what is kept (the result's z and kept are undefined then), or what is
/// kept.
AbnForwardResult call_forward_(const at::Tensor& x, const AbnForwardArguments& arguments);

/// z again from what was kept, bit for bit.
at::Tensor call_rebuild(const at::Tensor& kept, const AbnSettings& settings, const at::Tensor& mean,
                        const at::Tensor& inv_std);

/// Inputs that backward has beside dz. `side`: as in AbnStatistics, or revealed. `training`: batch
/// statistics, whose gradient flows to x too.
struct AbnBackwardArguments {
  AbnSettings settings;
  at::Tensor kept, branch, side, mean, inv_std;
  bool training = true;
  bool need_sums = true;  ///< the gradients of weight and bias
  bool need_dx = true;
  bool need_dresidual = false;
  bool need_z =
      false;  ///< z again, bit for bit, with a gradient's sweep; for what is kept before the activation
};

/// Undefined where not needed. dweight and dbias: f32, or f64 for an f64 layer.
struct AbnGradients {
  at::Tensor dx, dweight, dbias, dresidual, z;
};

AbnGradients call_backward(const at::Tensor& dz, const AbnBackwardArguments& arguments);
AbnGradients call_backward_(at::Tensor dz, const AbnBackwardArguments& arguments);  ///< dx is written over dz

// The operators' signatures as the dispatcher has them; register.cpp holds the schemas, abn_dense.cpp and
// abn_meta.cpp the kernels. abn_forward returns (z, kept, side, mean, inv_std), abn_forward_ the same without
// kept; the bits of kOutputBit take the place of what that kind does not need: kept, and z.
#define PALIMPSEST_ABN_SETTINGS                                                             \
  const OptionalTensor &residual, const OptionalTensor &weight, const OptionalTensor &bias, \
      std::string_view activation, double activation_param, std::string_view keep, bool relu_residual
#define PALIMPSEST_ABN_FORWARD                                                                    \
  PALIMPSEST_ABN_SETTINGS, const OptionalTensor &running_mean, const OptionalTensor &running_var, \
      bool training, double momentum, double eps, bool for_backward
#define PALIMPSEST_ABN_BACKWARD                                                                          \
  const at::Tensor &kept, const OptionalTensor &branch, const at::Tensor &side, PALIMPSEST_ABN_SETTINGS, \
      const at::Tensor &mean, const at::Tensor &inv_std, bool training, bool need_sums
#define PALIMPSEST_DECLARE_INNER_OPERATORS                                                            \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(                 \
      const at::Tensor& x, PALIMPSEST_ABN_FORWARD);                                                   \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(const at::Tensor& x,        \
                                                                          PALIMPSEST_ABN_FORWARD);    \
  at::Tensor abn_rebuild(const at::Tensor& kept, PALIMPSEST_ABN_SETTINGS, const at::Tensor& mean,     \
                         const at::Tensor& inv_std);                                                  \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward(                \
      const at::Tensor& dz, PALIMPSEST_ABN_BACKWARD, bool need_z, bool need_dx, bool need_dresidual); \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward_(                           \
      const at::Tensor& dz, PALIMPSEST_ABN_BACKWARD, bool need_z, bool need_dresidual);

/// Over tensors of any device whose kernels abn_device.h knows.
namespace dense {
PALIMPSEST_DECLARE_INNER_OPERATORS
}
namespace meta {
PALIMPSEST_DECLARE_INNER_OPERATORS
}

}  // namespace palimpsest::ops
