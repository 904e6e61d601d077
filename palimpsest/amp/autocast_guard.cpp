#include "palimpsest/amp/autocast_guard.h"

#include "palimpsest/base/compute_in_f32.h"
#include "palimpsest/base/error.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

namespace palimpsest::amp {
namespace {

c10::DeviceType checked(c10::Device device, c10::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw Error(ErrorKind::kUsage,
                fmt::format("[AutocastGuard] dtype must be f16 or bf16, got {}; f32 needs no guard",
                            c10::toString(dtype)));
  if (!device.is_cpu() && !device.is_cuda())
    throw Error(ErrorKind::kUsage,
                fmt::format("[AutocastGuard] device must be the CPU or CUDA, got {}", device.str()));
  return device.type();
}

}  // namespace

AutocastGuard::AutocastGuard(c10::Device device, c10::ScalarType dtype, const AutocastOptions& options)
    : device_(checked(device, dtype)),
      enabled_before_(at::autocast::is_autocast_enabled(device_)),
      dtype_before_(at::autocast::get_autocast_dtype(device_)),
      cache_before_(at::autocast::is_autocast_cache_enabled()),
      compute_in_f32_before_(set_compute_in_f32(options.enabled && options.compute_in_f32)) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, options.enabled);
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::set_autocast_cache_enabled(options.cache);
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(cache_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  set_compute_in_f32(compute_in_f32_before_);
}

}  // namespace palimpsest::amp
