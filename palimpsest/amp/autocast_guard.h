#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

/// Python's `torch.autocast` for C++: libtorch has the state of autocast, but no guard for it.
///
///   {
///     const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
///     loss = torch::cross_entropy_loss(net->forward(images), labels);
///   }
///   loss.backward();   // outside of the guard: backward has the types of the forward pass
namespace palimpsest::amp {

struct AutocastOptions {
  /// false: switches autocast off in this scope, for use within the scope of another guard.
  bool enabled = true;
  /// true: libtorch's layers keep the 16-bit copy of an f32 weight until the outermost guard ends, so a
  /// weight that is used often (by a recurrent layer) is cast once. false: each use casts, and the copy is
  /// freed at once, unless a layer saves it for backward. Our layers save no copy; amp/drop_weight_copies.h
  /// drops the copies of libtorch's layers.
  bool cache = true;
  /// 16-bit storage with f32 arithmetic ("pseudo f16"), for processors without fast 16-bit arithmetic. It
  /// applies to our operators (ops::convolution, abn_conv, linear, ...); libtorch's operators still multiply
  /// 16-bit values.
  bool compute_in_f32 = false;
};

/// Switches autocast on for `device` (only its type counts) to `dtype`, f16 or bf16, on this thread until the
/// end of the scope. Guards nest. Each guard restores the previous state, also if an exception passes. The
/// outermost guard clears the cache, so no copy outlives the optimizer's step that changes its weight.
///
/// In the scope, libtorch's matrix products and convolutions run in `dtype`, its sums and losses in f32. Our
/// operators:
///   ops::convolution, abn_conv, activate_conv, linear   run in `dtype` and save the f32 weight, not a copy
///   ops::abn, abn_, max_pool2d                          run in the dtype of their input; f32 parameters,
///                                                       statistics and arithmetic
/// f64 tensors stay f64. memory::recompute runs a segment with the same autocast state again.
/// Throws Error(kUsage) for another dtype or device.
class AutocastGuard {
 public:
  AutocastGuard(c10::Device device, c10::ScalarType dtype, const AutocastOptions& options = {});
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_before_;
  const c10::ScalarType dtype_before_;
  const bool cache_before_, compute_in_f32_before_;
};

}  // namespace palimpsest::amp
