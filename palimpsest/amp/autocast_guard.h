#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

/// What Python's `torch.autocast` is, for C++, which has autocast's state and no guard for it.
///
///   {
///     const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
///     loss = torch::cross_entropy_loss(net->forward(images), labels);
///   }                    // backward belongs outside: it runs in the types of the forward pass anyway
///   loss.backward();
namespace palimpsest::amp {

struct AutocastOptions {
  /// false: autocast is off within, in the scope of another guard say.
  bool enabled = true;
  /// Keep the 16-bit copy that one of libtorch's layers makes of an f32 weight until the outermost guard
  /// ends: a weight that is used often (by a recurrent layer) is cast once. false: each use casts, and where
  /// no layer keeps the copy (ours do not; for libtorch's: amp/weight_copies.h) it goes at once.
  bool cache = true;
  /// 16-bit storage with f32 maths ("pseudo f16"), for processors without fast 16-bit arithmetic. Our
  /// operators (ops::convolution, abn_conv, linear) know it; libtorch's own multiply 16-bit values as they can.
  bool wide_maths = false;
};

/// Autocast on `device` (its type counts) in `dtype`, f16 or bf16, on this thread until the end of the scope.
/// Guards nest; each puts back what it found, also when an exception passes, and the outermost clears the
/// cache, so that no copy outlives the optimizer's step that changes its weight.
///
/// Within, libtorch's matrix products and convolutions run in `dtype`, its sums and losses in f32. Of ours:
///   ops::convolution, abn_conv, activate_conv, linear    run in `dtype` and keep the f32 weight, not a copy
///   ops::abn, abn_, max_pool2d                        run in the type of their input, whatever it is, with
///                                                     f32 parameters, statistics and maths
/// f64 tensors are left alone by all. memory::recompute runs a segment again as it ran first.
/// Throws Error(kUsage) for another type or device.
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
  const bool cache_before_, wide_before_;
};

}  // namespace palimpsest::amp
