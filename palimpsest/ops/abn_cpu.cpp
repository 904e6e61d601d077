#include "palimpsest/kernels/abn.h"

#include "palimpsest/ops/abn_inner.h"
#include "palimpsest/ops/activation_name.h"
#include "palimpsest/ops/degenerate.h"
#include "palimpsest/ops/layout.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace palimpsest::ops::cpu {
namespace {

DType dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? DType::f64 : DType::f32;
}

kernels::AbnLayer layer_of(const at::Tensor& dense, std::string_view activation, double activation_param) {
  return {shape3(dense), preferred_layout(dense.sizes(), dense.strides()), dtype_of(dense),
          activation_from_name(activation), activation_param};
}

at::Tensor per_channel(const at::Tensor& x) {
  return at::empty({x.size(1)}, x.options());
}
at::Tensor nothing(const at::Tensor& x) {
  return at::empty({0}, x.options());
}

/// A contiguous vector and its address, null if absent. Parameters may be strided; the kernels read dense
/// vectors.
class Vector {
 public:
  explicit Vector(const OptionalTensor& t) : dense_(t ? t->expect_contiguous() : empty()) {}
  const void* data() const { return dense_->defined() ? dense_->const_data_ptr() : nullptr; }

 private:
  static c10::MaybeOwned<at::Tensor> empty() { return c10::MaybeOwned<at::Tensor>::owned(std::in_place); }
  c10::MaybeOwned<at::Tensor> dense_;
};

/// Ends a write to `t` that was made through `dense`: t itself or a copy. Whoever saved t for backward
/// notices by the version, which libtorch's own operators raise by themselves.
void written_over(const at::Tensor& t, const at::Tensor& dense) {
  if (dense.is_same(t)) {
    t.unsafeGetTensorImpl()->bump_version();
  } else {
    t.copy_(dense);
  }
}

/// Normalizes `x` into `z` (which may be x); both are dense in one layout.
AbnStatistics forward_dense(const at::Tensor& x, const at::Tensor& z, PALIMPSEST_ABN_FORWARD) {
  const auto layer = layer_of(z, activation, activation_param);
  const bool frozen = frozen_mean.has_value();
  const bool keep = for_backward && z.numel() > 0 && any_degenerate(weight, bias, layer.activation);
  AbnStatistics result{frozen ? nothing(x) : per_channel(x), frozen ? nothing(x) : per_channel(x),
                       per_channel(x), nothing(x)};
  if (keep) {
    count_fallback();
    result.xhat = at::empty({z.numel()}, x.options());
  }
  void* const xhat = keep ? result.xhat.mutable_data_ptr() : nullptr;
  const Vector gamma(weight), beta(bias);
  if (frozen) {
    result.inv_std = frozen_var->add(eps).rsqrt_();
    if (z.numel() > 0)
      kernels::cpu::abn_apply(layer, x.const_data_ptr(), Vector(frozen_mean).data(),
                              Vector(result.inv_std).data(), gamma.data(), beta.data(), z.mutable_data_ptr(),
                              xhat);
  } else {
    kernels::cpu::abn_forward(layer, eps, x.const_data_ptr(), gamma.data(), beta.data(), z.mutable_data_ptr(),
                              xhat, result.mean.mutable_data_ptr(), result.unbiased_var.mutable_data_ptr(),
                              result.inv_std.mutable_data_ptr());
    const auto m = static_cast<double>(layer.shape.per_channel());
    result.unbiased_var.mul_(m / (m - 1));
  }
  if (keep) result.xhat.resize_({0});  // the bytes stay behind it
  return result;
}

/// The kept x-hat in the layout of dense `z`, or an undefined tensor.
at::Tensor kept_xhat(const at::Tensor& hidden, const at::Tensor& z, const OptionalTensor& weight,
                     const OptionalTensor& bias, Activation activation) {
  if (z.numel() == 0) return {};
  const at::Tensor xhat = reveal_xhat(hidden, z);
  if (xhat.numel() > 0) return in_layout_of(z, xhat);
  TORCH_CHECK(
      !any_degenerate(weight, bias, activation),
      "[abn] backward needs the normalized x of a layer with a degenerate channel (a weight near zero), and "
      "it is "
      "gone; something copied the tensors saved by a compiled graph: run this layer outside that graph");
  return {};
}

/// Both gradients from dense `dz` of z's layout; dx may be dz, and is undefined where not needed.
std::pair<at::Tensor, at::Tensor> backward_dense(const at::Tensor& dz, const at::Tensor& dx,
                                                 PALIMPSEST_ABN_BACKWARD) {
  const auto layer = layer_of(z, activation, activation_param);
  const at::Tensor kept = kept_xhat(xhat, z, weight, bias, layer.activation);
  const bool reduce = need_sums || (training && dx.defined());
  at::Tensor sum_dy = reduce ? per_channel(z) : nothing(z);
  at::Tensor sum_dy_xhat = reduce ? per_channel(z) : nothing(z);
  if (z.numel() == 0) return {sum_dy_xhat.zero_(), sum_dy.zero_()};

  const Vector gamma(weight), beta(bias), scale(inv_std);
  const void* const read_xhat = kept.defined() ? kept.const_data_ptr() : nullptr;
  if (training && dx.defined()) {
    kernels::cpu::abn_backward(layer, z.const_data_ptr(), read_xhat, dz.const_data_ptr(), gamma.data(),
                               beta.data(), scale.data(), sum_dy.mutable_data_ptr(),
                               sum_dy_xhat.mutable_data_ptr(), dx.mutable_data_ptr());
    return {sum_dy_xhat, sum_dy};
  }
  if (need_sums)  // before dx, which may write over dz
    kernels::cpu::abn_backward_reduce(layer, z.const_data_ptr(), read_xhat, dz.const_data_ptr(), gamma.data(),
                                      beta.data(), sum_dy.mutable_data_ptr(), sum_dy_xhat.mutable_data_ptr());
  if (dx.defined())
    kernels::cpu::abn_backward_apply(layer, z.const_data_ptr(), read_xhat, dz.const_data_ptr(), gamma.data(),
                                     beta.data(), scale.data(), nullptr, nullptr,
                                     static_cast<double>(layer.shape.per_channel()), dx.mutable_data_ptr());
  return {sum_dy_xhat, sum_dy};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(const at::Tensor& x,
                                                                                   PALIMPSEST_ABN_FORWARD) {
  at::Tensor z = empty_output(x);
  const bool dense = dense_layout(x.sizes(), x.strides()).has_value();
  if (!dense) z.copy_(x);  // the one copy serves as the output
  auto r = forward_dense(dense ? x : z, z, weight, bias, frozen_mean, frozen_var, eps, activation,
                         activation_param, for_backward);
  return {std::move(z), std::move(r.mean), std::move(r.unbiased_var), std::move(r.inv_std),
          std::move(r.xhat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(at::Tensor x,
                                                                        PALIMPSEST_ABN_FORWARD) {
  const at::Tensor dense = in_layout_of(x, x);
  auto r = forward_dense(dense, dense, weight, bias, frozen_mean, frozen_var, eps, activation,
                         activation_param, for_backward);
  written_over(x, dense);
  return {std::move(r.mean), std::move(r.unbiased_var), std::move(r.inv_std), std::move(r.xhat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> abn_backward(const at::Tensor& dz, PALIMPSEST_ABN_BACKWARD,
                                                            bool need_dx) {
  const at::Tensor dense_z = in_layout_of(z, z);
  const at::Tensor dense_dz = in_layout_of(dense_z, dz);
  at::Tensor dx;
  if (need_dx)
    dx = dense_dz.is_same(dz) ? empty_output(dense_z) : dense_dz;  // a converted dz is ours to write over
  auto [dweight, dbias] = backward_dense(dense_dz, dx, dense_z, xhat, weight, bias, inv_std, training,
                                         activation, activation_param, need_sums);
  return {need_dx ? std::move(dx) : nothing(z), need_sums ? std::move(dweight) : nothing(z),
          need_sums ? std::move(dbias) : nothing(z)};
}

std::tuple<at::Tensor, at::Tensor> abn_backward_(at::Tensor dz, PALIMPSEST_ABN_BACKWARD) {
  const at::Tensor dense_z = in_layout_of(z, z);
  const at::Tensor dense_dz = in_layout_of(dense_z, dz);
  auto [dweight, dbias] = backward_dense(dense_dz, dense_dz, dense_z, xhat, weight, bias, inv_std, training,
                                         activation, activation_param, need_sums);
  written_over(dz, dense_dz);
  return {need_sums ? std::move(dweight) : nothing(z), need_sums ? std::move(dbias) : nothing(z)};
}

}  // namespace palimpsest::ops::cpu
