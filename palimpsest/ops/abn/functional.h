#pragma once

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/common/optional.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <optional>
#include <string>

/// The layer for operators that differentiate by themselves (abn, abn_conv, concat_abn_conv, dense_block):
/// checks, passes without autograd, and the saved tensors of an autograd Function. The passes go through
/// libtorch's dispatcher, so tracing records them. Other operators include this header of the folder only.
namespace palimpsest::ops::abn_detail {

/// The tensors of one call, as the caller gave them.
struct Inputs {
  const at::Tensor& x;
  const NormalizationTensors& norm;
  const OptionalTensor& residual;
};

/// Checks all requirements of the layer. Raises c10::Error "[abn] requirement, got value".
void check(const Inputs& inputs, const AbnOptions& options);

/// Returns whether a layer takes its statistics over a group of several ranks. Raises c10::Error if a layer
/// that trains names a group that does not exist.
bool shares_statistics(const AbnOptions& options);

/// Checks the further requirements of writing over x. `recorded`: a gradient is required.
void check_in_place(const Inputs& inputs, Saved saved, bool recorded);
/// Checks that a tensor that backward reads shares no memory with x, which is written over.
void check_apart_from_x(const char* name, const OptionalTensor& t, const at::Tensor& x);

/// Returns whether autograd has to record a call with these inputs.
bool requires_gradient(const Inputs& inputs);

/// Run the layer, after the checks of abn and abn_. Autograd records it if a gradient is required.
at::Tensor run(const Inputs& inputs, AbnOptions options);
at::Tensor run_in_place(const Inputs& inputs, AbnOptions options);

/// A layer's output, and what recompute_output() makes it from. Without a gradient `saved_values` is
/// undefined: nothing is kept.
struct Recomputable {
  at::Tensor z, saved_values, mean, inv_std;
};
/// Runs the layer and shows what it saves, so that a reader of z can save that in place of z.
/// options.saved: kPreActivation or kNormalized. `consume`: saved_values is written over x.
Recomputable run_recomputable(const Inputs& inputs, AbnOptions options, bool consume);

/// Returns the activation as the passes take it: a leaky ReLU of slope 0 and an ELU of alpha 0 are ReLU.
Activation resolved(Activation activation, double activation_param);
/// Returns the options as the passes take them: `activation` is resolved, `saved` is saved_for(options, dtype).
/// `dtype`: of x.
AbnOptions resolved(AbnOptions options, at::ScalarType dtype);

/// The settings of the layer for every pass.
struct Settings {
  OptionalTensor residual, weight, bias;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0;
  Saved saved = Saved::kOutput;
  bool relu_residual = false;
};

/// The inputs of a forward pass beside x. Running statistics move if `training`; otherwise they normalize.
struct ForwardArguments {
  Settings settings;
  OptionalTensor running_mean, running_var;
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
  bool for_backward = false;  ///< a backward pass may follow: non-invertible channels are saved
  /// The group that shares the statistics; empty if there is none, if it has one rank, or unless `training`.
  std::string group{};
};

/// Returns the arguments of a forward pass. They hold no running statistics in a recomputed segment that
/// trains: its first run has moved them.
ForwardArguments forward_arguments(const Inputs& inputs, const AbnOptions& options, bool for_backward);

/// The small results of a forward pass.
struct Statistics {
  at::Tensor mean;     ///< (C), f64: of the batch, or the running mean
  at::Tensor inv_std;  ///< (C), f64: 1 / sqrt(var + eps)
  /// The normalized x of the non-invertible channels and their indices (invertibility/saved_channels.h). Both
  /// have shape (0), because shapes in a traced graph must not depend on values. The data lie in their
  /// storage.
  at::Tensor channel_values, channel_index;
  /// kOutputBit: the branch of each value, u8, (branch_bytes(elements)); otherwise undefined.
  at::Tensor branch;
  at::Tensor count{};  ///< (1), f64: values per channel in the group's batch; undefined without a group
};

struct ForwardResult {
  at::Tensor z;             ///< undefined if forward_ wrote z over x
  at::Tensor saved_values;  ///< the saved tensor if it lies beside x and z (saves_aside); otherwise undefined
  Statistics statistics;
};

ForwardResult forward(const at::Tensor& x, const ForwardArguments& arguments);
/// Writes the saved tensor over x.
ForwardResult forward_(const at::Tensor& x, const ForwardArguments& arguments);

/// Returns z, recomputed from the saved tensor, bit-identical to the z of the forward pass.
at::Tensor recompute_output(const at::Tensor& saved_values, const Settings& settings, const at::Tensor& mean,
                            const at::Tensor& inv_std);

/// The inputs of a backward pass beside dz.
struct BackwardArguments {
  Settings settings;
  at::Tensor saved_values, branch, channel_values, channel_index, mean, inv_std;
  bool training = true;   ///< the statistics were those of the batch: they depend on x
  bool need_sums = true;  ///< the gradients of weight and bias
  bool need_dx = true;
  bool need_dresidual = false;
  /// true: the same pass over memory also recomputes z, bit-identically; is_before_activation(saved) only.
  bool need_z = false;
  std::string group{};  ///< as forward had it
  at::Tensor count{};   ///< Statistics::count
};

/// Returns whether backward adds its sums over a group.
inline bool is_synchronized(const BackwardArguments& a) {
  return a.training && !a.group.empty();
}

/// The gradients, and z; undefined where not needed. dweight and dbias: f32, or f64 for f64 layers.
struct Gradients {
  at::Tensor dx, dweight, dbias, dresidual, z;
};

Gradients backward(const at::Tensor& dz, const BackwardArguments& arguments);
/// Writes dx over dz.
Gradients backward_(at::Tensor dz, const BackwardArguments& arguments);
/// Calls backward_ if dx is needed and may be written over dz (can_steal_gradient), otherwise backward.
Gradients backward_stealing(at::Tensor dz, const BackwardArguments& arguments);

/// Returns the tensor from which backward starts.
at::Tensor saved_tensor(Saved saved, const at::Tensor& x, const ForwardResult& result);

/// Saves in `ctx` the arguments that saved_arguments() returns. The tensors of `more` follow from number
/// kSavedTensors on. With frozen statistics, identity activation, no residual and no gradient for weight and
/// bias, backward needs no values of the input, and `saved_values` is not saved.
inline constexpr int kSavedTensors = 10;
void save(torch::autograd::AutogradContext* ctx, at::Tensor saved_values, const ForwardArguments& arguments,
          const Statistics& statistics, at::ArrayRef<at::Tensor> more = {});
BackwardArguments saved_arguments(torch::autograd::AutogradContext* ctx);
BackwardArguments saved_arguments(torch::autograd::AutogradContext* ctx,
                                  const torch::autograd::variable_list& saved);

/// Knows which of x, weight, bias and residual require a gradient. libtorch numbers only the inputs that are
/// present; `first_slot` is the number of x.
class GradientSlots {
 public:
  /// Sets arguments.need_sums, need_dx and need_dresidual.
  GradientSlots(torch::autograd::AutogradContext* ctx, BackwardArguments& arguments, int first_slot);

  /// Returns the number of the first input after these.
  int next() const { return next_; }

  /// Returns the gradients of x, weight, bias and residual in the order of a Function's inputs, in the
  /// parameters' dtypes, followed by `rest`.
  torch::autograd::variable_list in_order(Gradients gradients, std::initializer_list<at::Tensor> rest) const;

 private:
  bool dweight_ = false, dbias_ = false;
  at::ScalarType weight_type_ = at::kFloat, bias_type_ = at::kFloat;
  int next_ = 0;
};

}  // namespace palimpsest::ops::abn_detail
