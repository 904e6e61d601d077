#pragma once

#include "palimpsest/ops/abn.h"
#include "tests/support/error_of.h"
#include "tests/support/grid.h"
#include "tests/support/relative_error.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

/// One call of the layer with its gradients, and the same by libtorch's batch_norm and activation in f64.
namespace palimpsest::ops::tests {

using testing::can_save;
using testing::error_of;
using testing::kAllSaved;
using testing::relative_error;
using testing::tolerance_across_kinks;

using OptionalTensor = std::optional<at::Tensor>;

/// Options of a layer that saves that tensor, with leaky ReLU if its backward can start from it.
inline AbnOptions options_with(Saved saved) {
  AbnOptions options;
  options.saved = saved;
  if (!can_save(options.activation, saved)) options.activation = Activation::kGELU;
  return options;
}

/// A case to run. `base` is a contiguous leaf; the layer's input is view(base.clone()), so that in-place
/// calls have a non-leaf, strides can be odd, and gradients are read at `base`.
struct AbnCase {
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
AbnCase make_case(std::vector<int64_t> shape, at::ScalarType dtype, int64_t seed = 0);

Outcome run_layer(const AbnCase& c, bool in_place);
Outcome run_truth(const AbnCase& c);

/// The activation by libtorch's own operators.
at::Tensor activate(const at::Tensor& y, Activation activation, double param);

/// run_layer and run_truth agree in everything.
void expect_right(const AbnCase& c, bool in_place);

/// f32 and f64, abn and abn_.
void for_each_form(const std::function<void(at::ScalarType, bool in_place)>& test);

}  // namespace palimpsest::ops::tests
