#include "palimpsest/ops/upsampled_loss/device_cuda.h"

#include "palimpsest/kernels/cuda/upsampled_loss.h"
#include "palimpsest/ops/common/cuda_call.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>

#include <cmath>
#include <limits>

namespace palimpsest::ops::upsampled_loss_detail {
namespace {

/// Returns which pixels bootstrapping selects, u8 (N, P), from their hardness (N, P). Image by image: to sort
/// takes several numbers per pixel.
at::Tensor hardest(const at::Tensor& hardness, double share, double probability) {
  const at::Tensor valid = hardness.gt(-std::numeric_limits<double>::infinity());
  at::Tensor selected = at::empty(hardness.sizes(), hardness.options().dtype(at::kByte));
  const at::Tensor places = at::arange(hardness.size(1), hardness.options().dtype(at::kLong));
  for (int64_t n = 0; n < hardness.size(0); ++n) {
    // Stable: of equally hard pixels those that come first.
    const at::Tensor order = std::get<1>(hardness[n].sort(/*stable=*/true, 0, /*descending=*/true));
    const at::Tensor ranks = at::empty_like(places).scatter_(0, order, places);
    at::Tensor chosen = valid[n].logical_and(ranks.lt(valid[n].sum().to(at::kDouble).mul(share).ceil()));
    if (probability < 1) chosen = chosen.logical_and(hardness[n].gt(-std::log(probability)));
    selected[n].copy_(chosen);
  }
  return selected;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward_on_gpu(const kernels::UpsampledProblem& problem,
                                                  const at::Tensor& values, const at::Tensor& ids,
                                                  const at::Tensor& weight, const LossArguments& arguments,
                                                  bool for_backward, int64_t& first_wrong) {
  CudaCall call(values);
  const auto plain = values.options().memory_format(std::nullopt);
  at::Tensor sums = at::empty({4}, plain.dtype(at::kDouble));
  const at::Tensor log_sum = at::empty(ids.sizes(), plain.dtype(at::kDouble));
  const bool bootstraps = arguments.bootstrap_share < 1 || arguments.bootstrap_probability < 1;
  const at::Tensor hardness =
      bootstraps ? at::empty({problem.n, problem.out.h * problem.out.w}, plain.dtype(at::kDouble))
                 : at::Tensor();
  const kernels::CrossEntropyTargets targets{ids.const_data_ptr(), ids.scalar_type() == at::kByte,
                                             arguments.ignore_index};
  const kernels::CrossEntropyRules rules{
      .weight = weight.defined() ? weight.const_data_ptr<double>() : nullptr,
      .label_smoothing = arguments.label_smoothing};
  kernels::cuda::UpsampledLosses out;
  out.log_sum = log_sum.mutable_data_ptr<double>();
  out.hardness = bootstraps ? hardness.mutable_data_ptr<double>() : nullptr;
  out.sums = sums.mutable_data_ptr<double>();
  const at::Tensor workspace =
      at::empty({kernels::cuda::upsampled_losses_workspace_bytes(problem)}, plain.dtype(at::kByte));
  out.workspace = workspace.mutable_data_ptr();
  const void* const x = values.const_data_ptr();
  kernels::cuda::upsampled_losses(problem, x, targets, rules, nullptr, out, call.stream());
  first_wrong = -1;
  if (arguments.checks_targets && !call.is_capturing())
    if (const double place = sums[3].item<double>(); place < static_cast<double>(ids.numel()))
      first_wrong = static_cast<int64_t>(place);
  at::Tensor gradient = for_backward ? at::empty_like(values) : at::empty({0}, plain);
  if (first_wrong >= 0) return {sums, gradient};

  at::Tensor selected;
  if (bootstraps) {
    selected = hardest(hardness, arguments.bootstrap_share, arguments.bootstrap_probability);
    out.hardness = nullptr;
    kernels::cuda::upsampled_losses(problem, x, targets, rules, selected.const_data_ptr<uint8_t>(), out,
                                    call.stream());
  }
  if (for_backward)
    kernels::cuda::upsampled_gradient(
        problem, x, targets, rules, bootstraps ? selected.const_data_ptr<uint8_t>() : nullptr,
        log_sum.const_data_ptr<double>(), gradient.mutable_data_ptr(), call.stream());
  return {std::move(sums), std::move(gradient)};
}

void argmax_on_gpu(const kernels::UpsampledProblem& problem, const at::Tensor& values, at::Tensor& ids) {
  const CudaCall call(values);
  kernels::cuda::upsampled_argmax(problem, values.const_data_ptr(), ids.mutable_data_ptr<int64_t>(),
                                  call.stream());
}

}  // namespace palimpsest::ops::upsampled_loss_detail
