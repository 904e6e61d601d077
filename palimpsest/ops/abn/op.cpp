#include "palimpsest/ops/abn.h"

#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/dtype.h"

#include <utility>

namespace palimpsest::ops {

Saved saved_for(const AbnOptions& options, at::ScalarType dtype) {
  const bool lost = saves_output(options.saved) && kernels::is_invertible(options.activation) &&
                    !kernels::is_invertible_in(dtype_of(dtype), options.activation, options.activation_param);
  return lost ? Saved::kPreActivation : options.saved;
}

at::Tensor abn(const at::Tensor& x, const NormalizationTensors& norm, const AbnOptions& options,
               const OptionalTensor& residual) {
  const abn_detail::Inputs inputs{x, norm, residual};
  check(inputs, options);
  return run(inputs, options);
}

// By value: a caller that moves x in gives up its memory.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
at::Tensor abn_(at::Tensor x, const NormalizationTensors& norm, const AbnOptions& options,
                const OptionalTensor& residual) {
  const abn_detail::Inputs inputs{x, norm, residual};
  check(inputs, options);
  abn_detail::check_in_place(inputs, options.saved, requires_gradient(inputs));
  return run_in_place(inputs, options);
}

}  // namespace palimpsest::ops
