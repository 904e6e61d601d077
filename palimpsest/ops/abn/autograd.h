#pragma once

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn/check.h"
#include "palimpsest/ops/abn/functional.h"

#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>

/// What the autograd Functions of abn, abn_ and abn_conv have in common.
namespace palimpsest::ops {

/// Raises unless this backward pass records no graph of its own.
void refuse_second_derivative(const char* op);

/// Whether backward may write dx over the incoming gradient: nobody else can see it, and it lies as `like`
/// does. A convolution's gradient passes; those of sum (expanded) and of a residual addition (shared with the
/// other branch) do not.
bool ours_to_overwrite(const at::Tensor& dz, const at::Tensor& like);

/// Whether autograd has to record this call.
bool differentiable(const AbnTensors& tensors);

/// kNormalized in place of kPreActivation for a layer with a degenerate channel (ops/invertibility/criterion.h): y cannot give
/// x-hat back there, and x-hat takes no more memory.
Saved safe_keep(Saved keep, const AbnTensors& tensors);

/// Without running statistics when a segment is recomputed: they have moved once.
AbnForwardArguments arguments_of(const AbnTensors& tensors, const AbnOptions& options, bool for_backward);

/// The tensor that backward starts from.
at::Tensor kept_of(Saved keep, const at::Tensor& x, const AbnForwardResult& result);

/// Saves what saved_arguments reads again; `more` come after, as number kSavedTensors and up. Where
/// statistics are frozen and the activation is the identity, and neither weight nor bias wants a gradient,
/// backward needs nothing of the input, and `kept` is not saved.
inline constexpr int kSavedTensors = 8;
void save(torch::autograd::AutogradContext* ctx, at::Tensor kept, const AbnForwardArguments& arguments,
          const AbnStatistics& statistics, at::ArrayRef<at::Tensor> more = {});
AbnBackwardArguments saved_arguments(torch::autograd::AutogradContext* ctx);
AbnBackwardArguments saved_arguments(torch::autograd::AutogradContext* ctx,
                                     const torch::autograd::variable_list& saved);

/// Which of x, weight, bias and residual want a gradient. Edges of absent tensors do not exist, so the
/// numbers of those behind them move up; `first_edge` is x's.
class AbnEdges {
 public:
  /// Sets arguments.need_sums, need_dx and need_dresidual.
  AbnEdges(torch::autograd::AutogradContext* ctx, AbnBackwardArguments& arguments, int first_edge);

  /// The number of the first edge behind these.
  int next() const { return next_; }

  /// The gradients of x, weight, bias and residual as a Function returns them, in the parameters' own dtypes,
  /// followed by `rest`.
  torch::autograd::variable_list in_order(AbnGradients g, std::initializer_list<at::Tensor> rest) const;

 private:
  bool dweight_ = false, dbias_ = false;
  at::ScalarType weight_type_ = at::kFloat, bias_type_ = at::kFloat;
  int next_ = 0;
};

}  // namespace palimpsest::ops
