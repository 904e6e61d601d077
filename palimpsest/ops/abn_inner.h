#pragma once

#include "palimpsest/ops/abn.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

/// The operators under abn and abn_: functional (or plainly mutating), without autograd, with CPU and Meta
/// kernels, so that tracing records them as they are. The functions here go through libtorch's dispatcher to
/// them.
namespace palimpsest::ops {

/// What a forward pass leaves for the statistics and for backward, besides z.
struct AbnStatistics {
  at::Tensor mean;          ///< (C) of this batch; empty where frozen
  at::Tensor unbiased_var;  ///< (C) of this batch, over m - 1; empty where frozen
  at::Tensor inv_std;       ///< (C) 1 / sqrt(var + eps)
  /// The normalized x, kept only for a degenerate channel. Its shape is (0) in any case, for shapes that
  /// tracing can know must not depend on values; where it was kept, it lies in the storage behind, dense in
  /// z's layout.
  at::Tensor xhat;
};

/// Inputs that forward has beside x. `frozen_mean`, `frozen_var`: given where they replace the batch's.
/// `for_backward`: a gradient may follow, so a degenerate channel keeps x-hat.
struct AbnForwardArguments {
  std::optional<at::Tensor> weight, bias, frozen_mean, frozen_var;
  double eps;
  Activation activation;
  double activation_param;
  bool for_backward;
};

std::pair<at::Tensor, AbnStatistics> call_forward(const at::Tensor& x, const AbnForwardArguments& arguments);
AbnStatistics call_forward_(at::Tensor x, const AbnForwardArguments& arguments);

/// Inputs that backward has beside dz. `xhat`: of z's shape, or as in AbnStatistics. `training`: batch
/// statistics, whose gradient flows to x too.
struct AbnBackwardArguments {
  at::Tensor z, xhat;
  std::optional<at::Tensor> weight, bias;
  at::Tensor inv_std;
  bool training;
  Activation activation;
  double activation_param;
  bool need_sums;  ///< the gradients of weight and bias
};

/// Undefined where not needed.
struct AbnGradients {
  at::Tensor dx, dweight, dbias;
};

AbnGradients call_backward(const at::Tensor& dz, const AbnBackwardArguments& arguments, bool need_dx);
AbnGradients call_backward_(at::Tensor dz, const AbnBackwardArguments& arguments);  ///< dx is written over dz

/// Gives `xhat` of a forward pass the sizes and strides of `z`'s dense form if it was kept; else leaves it
/// empty.
at::Tensor reveal_xhat(const at::Tensor& xhat, const at::Tensor& z);

// The operators' signatures as the dispatcher has them; register.cpp holds the schemas, abn_cpu.cpp and
// abn_meta.cpp the kernels.
using OptionalTensor = std::optional<at::Tensor>;
#define PALIMPSEST_ABN_FORWARD                                                                            \
  const OptionalTensor &weight, const OptionalTensor &bias, const OptionalTensor &frozen_mean,            \
      const OptionalTensor &frozen_var, double eps, std::string_view activation, double activation_param, \
      bool for_backward
#define PALIMPSEST_ABN_BACKWARD                                                                          \
  const at::Tensor &z, const at::Tensor &xhat, const OptionalTensor &weight, const OptionalTensor &bias, \
      const at::Tensor &inv_std, bool training, std::string_view activation, double activation_param,    \
      bool need_sums
#define PALIMPSEST_DECLARE_INNER_OPERATORS                                                                   \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(                        \
      const at::Tensor& x, PALIMPSEST_ABN_FORWARD);                                                          \
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(at::Tensor x,                      \
                                                                          PALIMPSEST_ABN_FORWARD);           \
  std::tuple<at::Tensor, at::Tensor, at::Tensor> abn_backward(const at::Tensor& dz, PALIMPSEST_ABN_BACKWARD, \
                                                              bool need_dx);                                 \
  std::tuple<at::Tensor, at::Tensor> abn_backward_(at::Tensor dz, PALIMPSEST_ABN_BACKWARD);

namespace cpu {
PALIMPSEST_DECLARE_INNER_OPERATORS
}
namespace meta {
PALIMPSEST_DECLARE_INNER_OPERATORS
}

}  // namespace palimpsest::ops
