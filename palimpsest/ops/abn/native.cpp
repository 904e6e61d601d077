#include "palimpsest/kernels/abn.h"

#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/common/running_statistics.h"
#include "palimpsest/ops/invertibility/criterion.h"
#include "palimpsest/ops/invertibility/saved_channels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace palimpsest::ops::dense {
namespace {

const AbnDeviceKernels& kernels_for(const at::Tensor& x) {
  return abn_device_kernels(x.device().type());
}

at::Tensor f64_vector(const at::Tensor& x) {
  return at::empty({x.size(1)}, x.options().dtype(at::kDouble));
}
at::Tensor nothing(const at::Tensor& x) {
  return at::empty({0}, x.options());
}
at::Tensor no_vector(const at::Tensor& x, at::ScalarType dtype) {
  return at::empty({0}, x.options().dtype(dtype));
}

/// A parameter as the kernels read it: contiguous, in the type of the maths; undefined if absent.
at::Tensor parameter(const OptionalTensor& t, const at::Tensor& x) {
  return t ? t->to(accumulate_type(x.scalar_type())).contiguous() : at::Tensor();
}
const void* data_or_null(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}

/// One layer over tensors that are dense in the layout of `like`.
struct Layer {
  AbnSettings settings;
  kernels::AbnProblem kernel;
  at::Tensor weight, bias, residual;  // as the kernels read them

  Layer(const at::Tensor& like, PALIMPSEST_ABN_SETTINGS)
      : settings{residual,
                 weight,
                 bias,
                 activation_from_name(activation),
                 activation_param,
                 keep_from_name(keep),
                 relu_residual},
        kernel{shape3(like),          preferred_layout(like.sizes(), like.strides()),
               dtype_of("abn", like), settings.activation,
               activation_param,      settings.keep,
               relu_residual},
        weight(parameter(weight, like)),
        bias(parameter(bias, like)),
        residual(residual ? in_layout_of(like, *residual) : at::Tensor()) {}

  bool saves_aside() const { return ops::saves_aside(settings.keep); }

  /// Room for the bits, where this layer keeps any; without a backward pass it keeps z alone.
  at::Tensor branch(const at::Tensor& x, bool for_backward) {
    if (settings.keep != Saved::kOutputBit) return {};
    if (!for_backward) {
      kernel.saved = Saved::kOutput;
      return {};
    }
    return at::zeros({kernels::branch_bytes(x.numel())}, x.options().dtype(at::kByte));
  }
};
#define PALIMPSEST_SETTINGS residual, weight, bias, activation, activation_param, keep, relu_residual

/// Ends a write to `t` that was made through `dense`: t itself or a copy. Whoever saved t for backward
/// notices by the version, which libtorch's own operators raise by themselves.
void written_over(const at::Tensor& t, const at::Tensor& dense) {
  if (dense.is_same(t)) {
    t.unsafeGetTensorImpl()->bump_version();
  } else {
    t.copy_(dense);
  }
}

/// The normalized x of `part`, some channels of x, in its place: the layer with neither weight nor
/// activation.
void normalize_part(kernels::AbnProblem layer, const at::Tensor& part, const at::Tensor& mean,
                    const at::Tensor& inv_std) {
  layer.activation = Activation::kIdentity;
  layer.saved = Saved::kOutput;
  kernels::AbnForward t;
  t.x = t.z = part.mutable_data_ptr();
  t.mean = mean.mutable_data_ptr<double>();
  t.inv_std = inv_std.mutable_data_ptr<double>();
  kernels_for(part).apply(layer, t, part);
}

/// The running statistics of a layer in training, if it has any.
struct Running {
  const OptionalTensor &mean, &var;
  double momentum;

  /// As `device` moves them in forward's own launches, if it does, and can.
  kernels::RunningStatistics in_kernel(const AbnDeviceKernels& device, const at::Tensor& x) const {
    const auto fits = [&](const OptionalTensor& t) {
      return t && t->is_contiguous() && t->scalar_type() == accumulate_type(x.scalar_type());
    };
    if (!device.moves_running || !fits(mean) || !fits(var)) return {};
    return {mean->mutable_data_ptr(), var->mutable_data_ptr(), momentum};
  }

  /// After forward, which left these statistics of the batch.
  void move(const kernels::RunningStatistics& in_kernel, const at::Tensor& batch_mean,
            const at::Tensor& batch_var, double m) const {
    if (in_kernel.mean) {
      mean->unsafeGetTensorImpl()->bump_version();
      var->unsafeGetTensorImpl()->bump_version();
      return;
    }
    move_running_statistics(mean, var, momentum, batch_mean, batch_var, m);
  }
};

/// Normalizes `x` into `z` (which may be x) and what is kept into `kept` (undefined, or a tensor of its own,
/// or x); all are dense in one layout. `branch`: zeros for its bits, or undefined.
AbnStatistics forward_dense(const at::Tensor& x, const at::Tensor& z, const at::Tensor& kept,
                            const at::Tensor& branch, Layer& layer, const Running& running, bool training,
                            double eps, bool for_backward) {
  const bool frozen = !training;
  const SideChannels side = for_backward ? choose_side_channels(layer.settings, x) : SideChannels{};
  AbnStatistics result{f64_vector(x), f64_vector(x), SideBuffer::hidden(side, x), {}};
  if (frozen)
    kernels_for(x).frozen_statistics(running.mean->contiguous(), running.var->contiguous(), eps, result.mean,
                                     result.inv_std);
  if (x.numel() == 0) return result;

  kernels::AbnForward t;
  t.x = x.const_data_ptr();
  t.residual = data_or_null(layer.residual);
  t.weight = data_or_null(layer.weight);
  t.bias = data_or_null(layer.bias);
  t.z = z.mutable_data_ptr();
  t.saved_values = kept.defined() ? kept.mutable_data_ptr() : nullptr;
  t.branch = branch.defined() ? branch.mutable_data_ptr<uint8_t>() : nullptr;
  t.mean = result.mean.mutable_data_ptr<double>();
  t.inv_std = result.inv_std.mutable_data_ptr<double>();

  const at::Tensor beside = SideBuffer(result.side, x).values();
  if (side.whole) {
    count_fallback();
    layer.kernel.saved = Saved::kNormalized;
    t.saved_values = beside.mutable_data_ptr();
  } else if (side.any()) {
    count_side_channels(side.count);
    beside.copy_(SideLayer(side, layer.kernel).gather(x));  // before x is written over
  }
  if (frozen) {
    kernels_for(x).apply(layer.kernel, t, x);
  } else {
    const kernels::RunningStatistics in_kernel = running.in_kernel(kernels_for(x), x);
    const at::Tensor var = f64_vector(x);
    t.var = var.mutable_data_ptr<double>();
    kernels_for(x).forward(layer.kernel, eps, t, in_kernel, x);
    running.move(in_kernel, result.mean, var, static_cast<double>(layer.kernel.shape.per_channel()));
  }
  if (side.any() && !side.whole) {
    const SideLayer part(side, layer.kernel);
    normalize_part(part.layer(), beside, part.gather_vector(result.mean), part.gather_vector(result.inv_std));
  }
  return result;
}

/// The gradients from dense `dz` of kept's layout into `out`; its dx may be dz.
void run_backward(const kernels::AbnProblem& layer, const at::Tensor& kept, const OptionalTensor& branch,
                  const at::Tensor& residual, const at::Tensor& dz, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& inv_std, bool training,
                  bool need_sums, const AbnGradients& out) {
  kernels::AbnBackward t;
  t.saved_values = kept.const_data_ptr();
  t.branch = branch ? branch->const_data_ptr<uint8_t>() : nullptr;
  t.residual = data_or_null(residual);
  t.dz = dz.const_data_ptr();
  t.weight = data_or_null(weight);
  t.bias = data_or_null(bias);
  t.mean = mean.const_data_ptr<double>();
  t.inv_std = inv_std.const_data_ptr<double>();
  t.sum_dy_xhat = out.dweight.defined() ? out.dweight.mutable_data_ptr() : nullptr;
  t.sum_dy = out.dbias.defined() ? out.dbias.mutable_data_ptr() : nullptr;
  t.dx = out.dx.defined() ? out.dx.mutable_data_ptr() : nullptr;
  t.dresidual = out.dresidual.defined() ? out.dresidual.mutable_data_ptr() : nullptr;
  t.z = out.z.defined() ? out.z.mutable_data_ptr() : nullptr;
  const AbnDeviceKernels& device = kernels_for(kept);
  if (training && t.dx) return device.backward(layer, t, kept);
  if (need_sums) device.backward_reduce(layer, t, kept);  // before dx, which may write over dz
  if (t.dx) {
    t.sum_dy = t.sum_dy_xhat = nullptr;
    device.backward_apply(layer, t, static_cast<double>(layer.shape.per_channel()), kept);
  }
}

/// Both from `dense_dz` of kept's layout; `dx` may be dz, or undefined where neither dx nor the residual's
/// gradient is needed.
void backward_dense(const at::Tensor& dz, const at::Tensor& kept, const OptionalTensor& branch,
                    const at::Tensor& side_bytes, Layer& layer, const at::Tensor& mean,
                    const at::Tensor& inv_std, bool training, bool need_sums, const AbnGradients& out) {
  if (kept.numel() == 0) {
    if (out.dweight.defined()) out.dweight.zero_(), out.dbias.zero_();
    return;
  }
  note_backward(layer.settings, kept);
  const SideBuffer beside(side_bytes, kept);
  const SideChannels& side = beside.channels();
  const at::Tensor& values = beside.values();
  if (!side.any()) check_nothing_was_left(layer.settings, kept);
  if (side.whole) layer.kernel.saved = Saved::kNormalized;
  const at::Tensor& from = side.whole ? values : kept;
  if (!side.any() || side.whole)
    return run_backward(layer.kernel, from, branch, layer.residual, dz, layer.weight, layer.bias, mean,
                        inv_std, training, need_sums, out);

  // The degenerate channels' results are made apart and put where the others' pass left nothing of use.
  const SideLayer part(side, layer.kernel);
  kernels::AbnProblem part_layer = part.layer();
  part_layer.saved = Saved::kNormalized;
  const at::Tensor part_dz = part.gather(dz);  // before dx may be written over it
  const at::Tensor part_residual = layer.residual.defined() ? part.gather(layer.residual) : at::Tensor();
  run_backward(layer.kernel, kept, branch, layer.residual, dz, layer.weight, layer.bias, mean, inv_std,
               training, need_sums, out);
  const AbnGradients part_out{out.dx.defined() ? at::empty_like(part_dz) : at::Tensor(),
                              part.gather_vector(out.dweight),
                              part.gather_vector(out.dbias),
                              out.dresidual.defined() ? at::empty_like(part_dz) : at::Tensor(),
                              {}};
  run_backward(part_layer, values, std::nullopt, part_residual, part_dz, part.gather_vector(layer.weight),
               part.gather_vector(layer.bias), part.gather_vector(mean), part.gather_vector(inv_std),
               training, need_sums, part_out);
  if (out.dx.defined()) part.scatter(part_out.dx, out.dx);
  if (out.dresidual.defined()) part.scatter(part_out.dresidual, out.dresidual);
  if (out.dweight.defined()) {
    part.scatter_vector(part_out.dweight, out.dweight);
    part.scatter_vector(part_out.dbias, out.dbias);
  }
}

/// Vectors for the sums where they are asked for or needed on the way to dx.
at::Tensor sums(const at::Tensor& kept, bool needed) {
  return needed ? at::empty({kept.size(1)}, kept.options().dtype(accumulate_type(kept.scalar_type())))
                : at::Tensor();
}

at::Tensor or_nothing(bool needed, at::Tensor t, const at::Tensor& like, at::ScalarType dtype) {
  return needed ? std::move(t) : no_vector(like, dtype);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(const at::Tensor& x,
                                                                                   PALIMPSEST_ABN_FORWARD) {
  at::Tensor z = empty_output(x);
  const bool dense = dense_layout(x.sizes(), x.strides()).has_value();
  if (!dense) z.copy_(x);  // the one copy serves as the output
  Layer layer(z, PALIMPSEST_SETTINGS);
  at::Tensor kept = layer.saves_aside() ? empty_output(x) : at::Tensor();
  at::Tensor branch = layer.branch(x, for_backward);
  auto r = forward_dense(dense ? x : z, z, kept, branch, layer, {running_mean, running_var, momentum},
                         training, eps, for_backward);
  return {std::move(z),
          kept.defined()     ? std::move(kept)
          : branch.defined() ? std::move(branch)
                             : nothing(x),
          std::move(r.side), std::move(r.mean), std::move(r.inv_std)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(const at::Tensor& x,
                                                                        PALIMPSEST_ABN_FORWARD) {
  const at::Tensor dense = in_layout_of(x, x);
  Layer layer(dense, PALIMPSEST_SETTINGS);
  at::Tensor z = layer.saves_aside() ? empty_output(x) : at::Tensor();
  at::Tensor branch = layer.branch(x, for_backward);
  auto r = forward_dense(dense, z.defined() ? z : dense, z.defined() ? dense : at::Tensor(), branch, layer,
                         {running_mean, running_var, momentum}, training, eps, for_backward);
  written_over(x, dense);
  return {z.defined()        ? std::move(z)
          : branch.defined() ? std::move(branch)
                             : nothing(x),
          std::move(r.side), std::move(r.mean), std::move(r.inv_std)};
}

at::Tensor abn_rebuild(const at::Tensor& kept, PALIMPSEST_ABN_SETTINGS, const at::Tensor& mean,
                       const at::Tensor& inv_std) {
  const at::Tensor dense = in_layout_of(kept, kept);
  Layer layer(dense, PALIMPSEST_SETTINGS);
  at::Tensor z = empty_output(kept);
  if (z.numel() == 0) return z;
  kernels::AbnForward t;
  t.saved_values = const_cast<void*>(dense.const_data_ptr());  // read only
  t.x = t.saved_values;
  t.residual = data_or_null(layer.residual);
  t.weight = data_or_null(layer.weight);
  t.bias = data_or_null(layer.bias);
  t.z = z.mutable_data_ptr();
  t.mean = const_cast<double*>(mean.const_data_ptr<double>());
  t.inv_std = const_cast<double*>(inv_std.const_data_ptr<double>());
  kernels_for(dense).rebuild(layer.kernel, t, dense);
  return z;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward(const at::Tensor& dz,
                                                                                    PALIMPSEST_ABN_BACKWARD,
                                                                                    bool need_z, bool need_dx,
                                                                                    bool need_dresidual) {
  const at::Tensor dense = in_layout_of(kept, kept);
  const at::Tensor dense_dz = in_layout_of(dense, dz);
  Layer layer(dense, PALIMPSEST_SETTINGS);
  const bool sweeps = need_dx || need_dresidual || need_z, reduces = need_sums || (training && sweeps);
  AbnGradients out{{}, sums(kept, reduces), sums(kept, reduces), {}, {}};
  if (sweeps)
    out.dx = dense_dz.is_same(dz) ? empty_output(dense) : dense_dz;  // a converted dz is ours to write over
  if (need_dresidual) out.dresidual = empty_output(dense);
  if (need_z) out.z = empty_output(dense);
  backward_dense(dense_dz, dense, branch, side, layer, mean, inv_std, training, need_sums, out);
  const auto vector = accumulate_type(kept.scalar_type());
  return {or_nothing(need_dx, out.dx, kept, kept.scalar_type()),
          or_nothing(need_sums, out.dweight, kept, vector), or_nothing(need_sums, out.dbias, kept, vector),
          or_nothing(need_dresidual, out.dresidual, kept, kept.scalar_type()),
          or_nothing(need_z, out.z, kept, kept.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward_(const at::Tensor& dz,
                                                                         PALIMPSEST_ABN_BACKWARD, bool need_z,
                                                                         bool need_dresidual) {
  const at::Tensor dense = in_layout_of(kept, kept);
  const at::Tensor dense_dz = in_layout_of(dense, dz);
  Layer layer(dense, PALIMPSEST_SETTINGS);
  const bool reduces = need_sums || training;
  AbnGradients out{dense_dz, sums(kept, reduces), sums(kept, reduces), {}, {}};
  if (need_dresidual) out.dresidual = empty_output(dense);
  if (need_z) out.z = empty_output(dense);
  backward_dense(dense_dz, dense, branch, side, layer, mean, inv_std, training, need_sums, out);
  written_over(dz, dense_dz);
  const auto vector = accumulate_type(kept.scalar_type());
  return {or_nothing(need_sums, out.dweight, kept, vector), or_nothing(need_sums, out.dbias, kept, vector),
          or_nothing(need_dresidual, out.dresidual, kept, kept.scalar_type()),
          or_nothing(need_z, out.z, kept, kept.scalar_type())};
}

}  // namespace palimpsest::ops::dense
