#include "palimpsest/ops/common/autocast.h"

#include "palimpsest/base/compute_in_f32.h"

#include <ATen/autocast_mode.h>
#include <ATen/cpu/Utils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>

namespace palimpsest::ops {
namespace {

/// Returns whether libtorch gives 16-bit convolutions on a CPU to oneDNN, whatever their shapes and options.
bool onednn_convolves(at::ScalarType type) {
  const at::Tensor pixel = at::empty({1, 1, 1, 1}, type);
  const std::array<c10::SymInt, 2> ones{1, 1}, zeros{0, 0};
  return at::native::select_conv_backend(pixel, pixel, std::nullopt, ones, zeros, ones, /*transposed=*/false,
                                         zeros, /*groups=*/1,
                                         std::nullopt) == at::native::ConvBackend::Mkldnn;
}

#if defined(__x86_64__)
bool processor_has(const char* capability) {
  const auto all = at::cpu::get_cpu_capabilities();
  const auto found = all.find(capability);
  return found != all.end() && found->second.toBool();
}
#endif

/// Returns whether this processor multiplies 16-bit values of the type faster than f32. An instruction for it is not
/// enough: Intel's vdpbf16ps adds half as many products per second as f32's, and oneDNN's f16 kernels for AVX512-FP16
/// widen values to f32.
bool multiplies_faster(at::ScalarType type) {
#if defined(__x86_64__)
  static const bool f16 = processor_has("amx_fp16"),
                    bf16 = processor_has("amx_bf16") ||
                           (processor_has("avx512_bf16") && !__builtin_cpu_is("intel"));
  return type == at::kHalf ? f16 : bf16;
#else
  (void)type;
  return true;  // onednn_convolves() knows it for other processors
#endif
}

bool convolves_in(at::ScalarType type) {
  return multiplies_faster(type) && onednn_convolves(type);
}

}  // namespace

std::optional<ProductPrecision> autocast_precision(const at::Tensor& x) {
  const auto device = x.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device) ||
      x.scalar_type() == at::kDouble)
    return std::nullopt;
  return ProductPrecision{at::autocast::get_autocast_dtype(device), compute_in_f32()};
}

ProductPrecision product_precision(const ProductPrecision& precision, const at::Tensor& x) {
  const bool widened = !precision.compute_in_f32 && x.is_cpu() &&
                       at::isReducedFloatingType(precision.storage) && !convolves_in(precision.storage);
  return {precision.storage, precision.compute_in_f32 || widened};
}

ProductPrecision weight_gradient_precision(const ProductPrecision& precision, const at::Tensor& x) {
  return {precision.storage, precision.compute_in_f32 || (x.is_cpu() && precision.storage == at::kHalf)};
}

at::Tensor shape_of(const at::Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type ? t : at::empty_like(t, t.options().dtype(type));
}

void save_precision(torch::autograd::AutogradContext* ctx, const std::optional<ProductPrecision>& precision) {
  if (!precision) return;
  ctx->saved_data["storage"] = static_cast<int64_t>(precision->storage);
  ctx->saved_data["compute_in_f32"] = precision->compute_in_f32;
}

std::optional<ProductPrecision> saved_precision(torch::autograd::AutogradContext* ctx) {
  const auto storage = ctx->saved_data.find("storage");
  if (storage == ctx->saved_data.end()) return std::nullopt;
  return ProductPrecision{static_cast<at::ScalarType>(storage->second.toInt()),
                          ctx->saved_data["compute_in_f32"].toBool()};
}

}  // namespace palimpsest::ops
