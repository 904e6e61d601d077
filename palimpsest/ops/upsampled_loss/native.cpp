#include "palimpsest/ops/upsampled_loss/native.h"

#include "palimpsest/kernels/upsampled_loss.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/ops/upsampled_loss/device_cuda.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::ops::upsampled_loss_detail::native {
namespace {

/// Logits as the kernels take them: f32 or f64, contiguous in NCHW or channels-last.
struct Map {
  at::Tensor values;
  kernels::UpsampledProblem problem;
};

Map map_of(const char* op, const at::Tensor& logits, Pair2 out, bool align_corners) {
  TORCH_CHECK(logits.dim() == 4 && logits.layout() == at::kStrided, "[", op,
              "] logits must be a dense tensor of (N, C, h, w), got shape ", logits.sizes());
  TORCH_CHECK(logits.is_cpu() || logits.is_cuda(), "[", op,
              "] logits must be on the CPU or on a CUDA device, got ", logits.device());
  const DType dtype = dtype_of(op, logits);
  for (const int d : {1, 2, 3})
    TORCH_CHECK(logits.size(d) > 0, "[", op, "] logits need at least one class and one pixel, got shape ",
                logits.sizes());
  TORCH_CHECK(out.h > 0 && out.w > 0, "[", op, "] the image must have at least one pixel, got ", out.h, " x ",
              out.w);
  TORCH_CHECK(std::max({logits.size(1), logits.size(2), logits.size(3)}) < (int64_t{1} << 31), "[", op,
              "] a size must be below 2^31, got shape ", logits.sizes());
  TORCH_CHECK(
      std::max(out.h, out.w) < (int64_t{1} << 31) && (logits.is_cpu() || out.h < (int64_t{1} << 31) / out.w),
      "[", op, "] the image must have below 2^31 pixels, got ", out.h, " x ", out.w);
  const auto format = logits.suggest_memory_format();
  Map map;
  map.values = logits.to(dtype == DType::f64 ? at::kDouble : at::kFloat).contiguous(format);
  map.problem = {logits.size(0),
                 logits.size(1),
                 {logits.size(2), logits.size(3)},
                 out,
                 format == at::MemoryFormat::ChannelsLast ? Layout::kChannelsLast : Layout::kNCHW,
                 dtype == DType::f64 ? DType::f64 : DType::f32,
                 align_corners};
  return map;
}

void check_share(const char* name, double value) {
  TORCH_CHECK(value > 0 && value <= 1, "[upsampled_cross_entropy] ", name, " must be in (0, 1], got ", value);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward) {
  constexpr const char* kOp = "upsampled_cross_entropy";
  TORCH_CHECK(targets.dim() == 3 && targets.layout() == at::kStrided && logits.dim() == 4 &&
                  targets.size(0) == logits.size(0),
              "[", kOp, "] targets must be (N, H, W) for logits of (N, C, h, w), got shapes ",
              targets.sizes(), " and ", logits.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kByte, "[", kOp,
              "] targets must be int64 or uint8, got ", c10::getDtypeNames(targets.scalar_type()).first);
  TORCH_CHECK(targets.device() == logits.device(), "[", kOp,
              "] targets must be on the device of the logits, got ", targets.device(), " and ",
              logits.device());
  check_share("bootstrap_share", arguments.bootstrap_share);
  check_share("bootstrap_probability", arguments.bootstrap_probability);
  TORCH_CHECK(arguments.label_smoothing >= 0 && arguments.label_smoothing <= 1, "[", kOp,
              "] label_smoothing must be in [0, 1], got ", arguments.label_smoothing);
  const Map map = map_of(kOp, logits, {targets.size(1), targets.size(2)}, arguments.align_corners);

  at::Tensor weight;
  if (arguments.weight && arguments.weight->defined()) {
    TORCH_CHECK(arguments.weight->dim() == 1 && arguments.weight->size(0) == logits.size(1), "[", kOp,
                "] weight must have one number per class, ", logits.size(1), ", got shape ",
                arguments.weight->sizes());
    weight = arguments.weight->detach().to(logits.device(), at::kDouble).contiguous();
    if (logits.is_cpu()) {
      const double* const values = weight.const_data_ptr<double>();
      for (int64_t c = 0; c < weight.numel(); ++c)
        TORCH_CHECK(values[c] == 0 || (values[c] >= kLeastClassWeight && values[c] <= kMostClassWeight), "[",
                    kOp, "] weight must be 0 or in [1e-30, 1e30], got ", values[c], " for class ", c);
    }
  }
  const at::Tensor ids = targets.contiguous();
  const auto check = [&](int64_t first_wrong) {
    TORCH_CHECK_INDEX(first_wrong < 0, "[", kOp, "] a target must be a class in [0, ", logits.size(1),
                      ") or ignore_index ", arguments.ignore_index, ", got ",
                      ids.reshape({-1})[first_wrong].item<int64_t>());
  };
  if (logits.is_cuda()) {
    int64_t first_wrong = -1;
    auto result = forward_on_gpu(map.problem, map.values, ids, weight, arguments, for_backward, first_wrong);
    check(first_wrong);
    return result;
  }
  at::Tensor sums = at::empty({4}, logits.options().dtype(at::kDouble).memory_format(std::nullopt));
  at::Tensor gradient = for_backward ? at::empty_like(map.values) : at::empty({0}, map.values.options());
  kernels::CrossEntropySums result;
  if (map.problem.n > 0) {
    constexpr int64_t kThreadsPerImage = 8;  // while one of them ranks its pixels, the others wait
    const kernels::CrossEntropyRules rules{
        .weight = weight.defined() ? weight.const_data_ptr<double>() : nullptr,
        .label_smoothing = arguments.label_smoothing,
        .share = arguments.bootstrap_share,
        .probability = arguments.bootstrap_probability,
        .ranked_images = at::get_num_threads() / kThreadsPerImage};
    // A tensor, so that the memory of a step has it.
    const at::Tensor workspace = at::empty(
        {kernels::cpu::upsampled_cross_entropy_workspace_bytes(map.problem, rules, for_backward)}, at::kByte);
    result = kernels::cpu::upsampled_cross_entropy(
        map.problem, map.values.const_data_ptr(),
        {ids.const_data_ptr(), ids.scalar_type() == at::kByte, arguments.ignore_index}, rules,
        for_backward ? gradient.mutable_data_ptr() : nullptr, workspace.mutable_data_ptr());
  }
  check(result.first_wrong);
  auto* const values = sums.mutable_data_ptr<double>();
  values[0] = result.loss;
  values[1] = result.weight;
  values[2] = static_cast<double>(result.count);
  values[3] = static_cast<double>(ids.numel());  // none is wrong
  return {std::move(sums), std::move(gradient)};
}

at::Tensor argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners) {
  TORCH_CHECK(size.size() == 2, "[upsampled_argmax] size must be two numbers (height, width), got ", size);
  const Map map = map_of("upsampled_argmax", logits, {size[0], size[1]}, align_corners);
  at::Tensor ids = at::empty({logits.size(0), size[0], size[1]},
                             logits.options().dtype(at::kLong).memory_format(std::nullopt));
  if (logits.is_cuda())
    argmax_on_gpu(map.problem, map.values, ids);
  else if (ids.numel() > 0)
    kernels::cpu::upsampled_argmax(map.problem, map.values.const_data_ptr(), /*bytes=*/false,
                                   ids.mutable_data_ptr());
  return ids;
}

}  // namespace palimpsest::ops::upsampled_loss_detail::native
