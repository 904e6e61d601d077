#pragma once

#include "palimpsest/ops/abn.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

/// One call of the layer with its gradients, and the same by libtorch's batch_norm and activation in f64.
namespace palimpsest::ops::tests {

using OptionalTensor = std::optional<at::Tensor>;

constexpr Saved kEverySaved[] = {Saved::kOutput,     Saved::kOutputForm1, Saved::kPreActivation,
                                 Saved::kNormalized, Saved::kInput,       Saved::kOutputBit};

/// Returns whether backward of a layer with this activation can start from this saved tensor.
constexpr bool can_save(Activation activation, Saved saved) {
  if (saved == Saved::kOutputBit) return kernels::has_branches(activation);
  return !saves_output(saved) || kernels::is_invertible(activation);
}

/// A layer that keeps that, with leaky ReLU where it can.
inline AbnOptions options_with(Saved saved) {
  AbnOptions options;
  options.saved = saved;
  if (!can_save(options.activation, saved)) options.activation = Activation::kGELU;
  return options;
}

/// A case to run. `base` is a contiguous leaf; the layer's input is view(base.clone()), so that in-place
/// calls have a non-leaf, strides can be odd, and gradients are read at `base`.
struct LayerCase {
  std::string name;
  at::Tensor base;
  std::function<at::Tensor(const at::Tensor&)> view = [](const at::Tensor& t) { return t; };
  OptionalTensor weight, bias, running_mean, running_var;
  OptionalTensor residual;
  at::Tensor dz;
  AbnOptions options;
};

struct Outcome {
  at::Tensor z, dx, dweight, dbias, dresidual, running_mean,
      running_var;  // dx: at base; undefined where absent
};

/// `shape` filled from `seed`: x around 0.7 with deviation 1.3, weight of both signs with 0.3 <= |weight|
/// < 1.5.
LayerCase make_case(std::vector<int64_t> shape, at::ScalarType dtype, int64_t seed = 0);

Outcome run_layer(const LayerCase& c, bool in_place);
Outcome run_truth(const LayerCase& c);

/// The activation by libtorch's own operators.
at::Tensor activate(const at::Tensor& y, Activation activation, double param);

/// ||got - want|| / ||want||, both in f64; the plain norm of got where want is 0.
double relative_error(const at::Tensor& got, const at::Tensor& want);

/// 1e-5 in f32, 1e-10 in f64, 2e-2 in f16 and 1e-1 in bf16 (where storage rounds values across a kink):
/// output and gradients. Running statistics: 1e-6.
double tolerance(at::ScalarType dtype);

/// run_layer and run_truth agree in everything.
void expect_right(const LayerCase& c, bool in_place);

/// f32 and f64, abn and abn_.
void for_each_form(const std::function<void(at::ScalarType, bool in_place)>& test);

/// The message of the error that `call` raises; "" if none.
std::string error_of(const std::function<void()>& call);

}  // namespace palimpsest::ops::tests
