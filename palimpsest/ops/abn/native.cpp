#include "palimpsest/ops/abn/native.h"

#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/running_statistics.h"
#include "palimpsest/ops/invertibility/saved_channels.h"
#include "palimpsest/ops/synchronization/process_group.h"
#include "palimpsest/ops/synchronization/statistics.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

namespace palimpsest::ops::abn_detail {
namespace {

using invertibility::ChannelView;
using invertibility::SavedChannels;

const Device& device_for(const at::Tensor& like) {
  return backend_of("abn", like) == Backend::kCuda ? cuda_device() : cpu_device();
}

at::Tensor f64_vector(const at::Tensor& x) {
  return at::empty({x.size(1)}, x.options().dtype(at::kDouble));
}

/// Returns a parameter as the kernels read it: contiguous, in the accumulate type; undefined if absent.
at::Tensor parameter(const OptionalTensor& t, const at::Tensor& x) {
  return t ? t->to(accumulate_type(x.scalar_type())).contiguous() : at::Tensor();
}
const void* data_or_null(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}
void* mutable_data_or_null(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr() : nullptr;
}

/// One call over tensors that are contiguous in the layout of `like`: its settings, and the kernels' problem.
struct Call {
  const Settings& settings;
  kernels::AbnProblem problem;
  at::Tensor weight, bias, residual;  // as the kernels read them

  Call(const at::Tensor& like, const Settings& given)
      : settings(given),
        problem{shape3(like),           preferred_layout(like.sizes(), like.strides()),
                dtype_of("abn", like),  given.activation,
                given.activation_param, given.saved,
                given.relu_residual},
        weight(parameter(given.weight, like)),
        bias(parameter(given.bias, like)),
        residual(given.residual ? in_layout_of(like, *given.residual) : at::Tensor()) {}

  /// Returns zeros for the branch bits if this call saves them. A call without a backward pass saves no bits.
  at::Tensor branch(const at::Tensor& x, bool for_backward) {
    if (settings.saved != Saved::kOutputBit) return {};
    if (!for_backward) {
      problem.saved = Saved::kOutput;
      return {};
    }
    return at::zeros({kernels::branch_bytes(x.numel())}, x.options().dtype(at::kByte));
  }

  /// Returns a choice of non-invertible channels of this layer.
  kernels::SlotChoice slot_choice(kernels::ChannelSlots c) const {
    kernels::AbnProblem p = problem;
    const bool inverts = saves_output(settings.saved);
    if (!inverts) p.activation = Activation::kIdentity;  // y is saved, without the residual
    c.weight = data_or_null(weight);
    c.bias = data_or_null(bias);
    c.residual = inverts ? data_or_null(residual) : nullptr;
    return {p, c};
  }

  /// Returns the layer as the choice of non-invertible channels sees it. `like`: a tensor of its shape.
  invertibility::Layer invertibility_layer(const at::Tensor& like) const {
    const kernels::SlotChoice choice = slot_choice({});
    return {choice.problem, settings.weight, settings.bias, choice.tensors.residual != nullptr,
            [this, like](const kernels::ChannelSlots& c) {
              device_for(like).choose_slots(slot_choice(c), like);
            }};
  }
};

/// Returns whether backward divides by the weight, so that x-hat of non-invertible channels is saved.
bool needs_slots(Saved saved) {
  return saves_output(saved) || saved == Saved::kPreActivation;
}

/// Ends a write to `t` through `written` (t itself, or a contiguous copy). Autograd notices writes by the
/// version of t; copy_ raises it, and a write by our kernels does not.
void finish_write(const at::Tensor& t, const at::Tensor& written) {
  if (written.is_same(t))
    bump_version(t);
  else
    t.copy_(written);
}

/// Normalizes `part`, some channels of x, in place: the layer with neither weight nor activation.
void normalize_part(kernels::AbnProblem problem, const at::Tensor& part, const at::Tensor& mean,
                    const at::Tensor& inv_std) {
  problem.activation = Activation::kIdentity;
  problem.saved = Saved::kOutput;
  kernels::AbnForward tensors;
  tensors.x = tensors.z = part.mutable_data_ptr();
  tensors.mean = mean.mutable_data_ptr<double>();
  tensors.inv_std = inv_std.mutable_data_ptr<double>();
  device_for(part).apply(problem, tensors, part);
}

/// Returns the running statistics that the kernel moves; null if the tensors do not allow it.
kernels::RunningStatistics running_in_kernel(const ForwardArguments& a, const at::Tensor& x) {
  const auto fits = [&](const OptionalTensor& t) {
    return t && t->is_contiguous() && t->scalar_type() == accumulate_type(x.scalar_type());
  };
  if (!fits(a.running_mean) || !fits(a.running_var)) return {};
  return {a.running_mean->mutable_data_ptr(), a.running_var->mutable_data_ptr(), a.momentum};
}

/// `m`: the number of values per channel, as a number or as a tensor.
template <class Count>
void move_running(const kernels::RunningStatistics& in_kernel, const ForwardArguments& a,
                  const at::Tensor& batch_mean, const at::Tensor& batch_var, const Count& m) {
  if (in_kernel.mean) {
    bump_version(*a.running_mean);
    bump_version(*a.running_var);
  } else {
    move_running_statistics(a.running_mean, a.running_var, a.momentum, batch_mean, batch_var, m);
  }
}

/// Gathers the statistics of all batches of the group into `result`, and moves the running statistics.
void synchronize(const at::Tensor& x, const Call& call, const ForwardArguments& a, Statistics& result) {
  const auto own = [&](double* mean, double* var) {
    device_for(x).statistics(call.problem, x.const_data_ptr(), mean, var, x);
  };
  const kernels::RunningStatistics running = running_in_kernel(a, x);
  const DType running_dtype = x.scalar_type() == at::kDouble ? DType::f64 : DType::f32;
  const int64_t values = x.numel() == 0 ? 0 : call.problem.shape.per_channel();
  synchronization::GroupStatistics group =
      synchronization::whole_batch(a.group, {x, x.size(1), values, own}, a.eps, running_dtype, running);
  move_running(running, a, group.mean, group.var, group.count);
  result.mean = std::move(group.mean);
  result.inv_std = std::move(group.inv_std);
  result.count = std::move(group.count);
}

/// Normalizes `x` into `z` (which may be x) and writes the saved tensor into `saved_values` (undefined, a
/// separate tensor, or x). All are contiguous in one layout. `branch`: zeros for the bits, or undefined.
Statistics run_forward(const at::Tensor& x, const at::Tensor& z, const at::Tensor& saved_values,
                       const at::Tensor& branch, Call& call, const ForwardArguments& a) {
  const Device& device = device_for(x);
  const bool has_slots = a.for_backward && needs_slots(call.settings.saved) && x.numel() > 0;
  const bool is_shared = !a.group.empty(), is_one_call = a.training && !is_shared;
  std::optional<kernels::ChannelSlots> left;  // to device.forward, which saves a launch
  const SavedChannels channels =
      has_slots ? choose_saved_channels(call.invertibility_layer(x), x, is_one_call ? &left : nullptr)
                : SavedChannels{};
  const auto own_vector = [&] { return is_shared ? at::Tensor() : f64_vector(x); };
  Statistics result{own_vector(), own_vector(), channels.hidden_values(x), channels.hidden_index(x), {}};
  if (!a.training) {
    const auto type = at::promote_types(a.running_mean->scalar_type(), a.running_var->scalar_type());
    device.frozen_statistics(a.running_mean->to(type).contiguous(), a.running_var->to(type).contiguous(),
                             a.eps, result.mean, result.inv_std);
  }
  if (is_shared) synchronize(x, call, a, result);  // also with an empty batch: the other ranks wait
  if (x.numel() == 0) return result;

  kernels::AbnForward tensors;
  tensors.x = x.const_data_ptr();
  tensors.residual = data_or_null(call.residual);
  tensors.weight = data_or_null(call.weight);
  tensors.bias = data_or_null(call.bias);
  tensors.z = z.mutable_data_ptr();
  tensors.saved_values = mutable_data_or_null(saved_values);
  tensors.branch = branch.defined() ? branch.mutable_data_ptr<uint8_t>() : nullptr;
  tensors.mean = result.mean.mutable_data_ptr<double>();
  tensors.inv_std = result.inv_std.mutable_data_ptr<double>();

  // They are normalized by sweeps of their own, also if they are all: z has the same bits whether channels are saved or
  // not.
  std::optional<ChannelView> part;
  if (channels.any()) {
    part.emplace(channels, call.problem);
    if (const auto written = part->in_pass(channels.values)) {
      tensors.normalized = *written;
      part.reset();
    } else if (const auto copied = part->copied_by_pass(channels.values)) {
      tensors.x_part = *copied;
    } else {
      part->copy_to(x, channels.values);  // before x is written over
    }
  }
  if (!is_one_call) {
    device.apply(call.problem, tensors, x);
  } else {
    const kernels::RunningStatistics running = running_in_kernel(a, x);
    const at::Tensor var = f64_vector(x);
    tensors.var = var.mutable_data_ptr<double>();
    std::optional<kernels::SlotChoice> choice;
    if (left) choice = call.slot_choice(*left);
    device.forward(call.problem, a.eps, tensors, running, choice ? &*choice : nullptr, x);
    move_running(running, a, result.mean, var, static_cast<double>(call.problem.shape.per_channel()));
  }
  if (part)
    normalize_part(part->problem(), channels.values, part->gather_vector(result.mean),
                   part->gather_vector(result.inv_std));
  return result;
}

/// The sums of dy * x-hat and of dy over the batch, (C) each.
struct Sums {
  at::Tensor dy_xhat, dy;
};

/// The tensors of one backward pass over some channels, contiguous in one layout. `out.dx` may be `dz`.
struct BackwardCall {
  kernels::AbnProblem problem;
  at::Tensor saved_values, branch, residual, dz, weight, bias, mean, inv_std;
  bool training, need_sums;
  Gradients out;
  kernels::NormalizedChannels normalized = {};

  /// The whole pass, with the statistics of this process.
  void run() const {
    const kernels::AbnBackward tensors = pointers({out.dweight, out.dbias});
    if (tensors.dx && (training || need_sums))
      device_for(saved_values).backward(problem, tensors, saved_values);
    else if (tensors.dx)
      apply({}, static_cast<double>(problem.shape.per_channel()));
    else if (need_sums)
      reduce();
  }

  /// Writes out.dweight and out.dbias.
  void reduce(const kernels::PartOfChannels& dz_part = {}) const {
    kernels::AbnBackward tensors = pointers({out.dweight, out.dbias});
    tensors.dz_part = dz_part;
    device_for(saved_values).backward_reduce(problem, tensors, saved_values);
  }

  /// Writes the other gradients, from sums over `m` values per channel; without sums for frozen statistics.
  void apply(const Sums& sums, double m, const kernels::PartOfChannels& dx_part = {}) const {
    kernels::AbnBackward tensors = pointers(sums);
    tensors.dx_part = dx_part;
    device_for(saved_values).backward_apply(problem, tensors, m, saved_values);
  }

 private:
  kernels::AbnBackward pointers(const Sums& sums) const {
    kernels::AbnBackward tensors;
    tensors.saved_values = saved_values.const_data_ptr();
    tensors.branch = branch.defined() ? branch.const_data_ptr<uint8_t>() : nullptr;
    tensors.residual = data_or_null(residual);
    tensors.dz = dz.const_data_ptr();
    tensors.weight = data_or_null(weight);
    tensors.bias = data_or_null(bias);
    tensors.mean = mean.const_data_ptr<double>();
    tensors.inv_std = inv_std.const_data_ptr<double>();
    tensors.sum_dy_xhat = mutable_data_or_null(sums.dy_xhat);
    tensors.sum_dy = mutable_data_or_null(sums.dy);
    tensors.dx = mutable_data_or_null(out.dx);
    tensors.dresidual = mutable_data_or_null(out.dresidual);
    tensors.z = mutable_data_or_null(out.z);
    tensors.frozen_statistics = !training;
    tensors.normalized = normalized;
    return tensors;
  }
};

/// The pass over the saved channels alone, where the kernels do not take them along (ChannelView::in_pass). It gives their results, which the pass over all channels cannot
/// compute. dz is copied before that pass, or by it.
class SavedChannelsCall {
 public:
  SavedChannelsCall(const BackwardCall& all, const SavedChannels& channels, bool synchronized)
      : all_(all),
        part_(channels, all.problem),
        call_{part_.problem(),
              channels.values,
              {},
              all.residual.defined() ? part_.gather(all.residual) : at::Tensor(),
              part_.empty_part(all.dz),
              part_.gather_vector(all.weight),
              part_.gather_vector(all.bias),
              part_.gather_vector(all.mean),
              part_.gather_vector(all.inv_std),
              all.training,
              all.need_sums,
              {}} {
    call_.problem.saved = Saved::kNormalized;
    const auto like_part = [&](const at::Tensor& t) {
      if (!t.defined()) return at::Tensor();
      return t.dim() == 1 ? at::empty({call_.problem.shape.c}, t.options()) : at::empty_like(call_.dz);
    };
    call_.out = {like_part(all.out.dx),
                 like_part(all.out.dweight),
                 like_part(all.out.dbias),
                 like_part(all.out.dresidual),
                 {}};
    if (!synchronized && call_.training && call_.out.dx.defined()) dz_part_ = part_.copied_by_pass(call_.dz);
    if (!dz_part_) part_.copy_to(all.dz, call_.dz);  // before dx may be written over dz
  }

  /// Runs both passes, with the statistics of this process.
  void run_both() {
    if (!dz_part_) {
      all_.run();
      call_.run();
      replace_sums();
      replace_gradients();
      return;
    }
    all_.reduce(*dz_part_);
    call_.run();
    all_.apply({all_.out.dweight, all_.out.dbias}, static_cast<double>(all_.problem.shape.per_channel()),
               *part_.copied_by_pass(call_.out.dx));
    replace_sums();
    replace_dresidual();
  }
  void reduce() {
    call_.reduce();
    replace_sums();
  }
  void apply(const Sums& of_all, double m) {
    call_.apply({part_.gather_vector(of_all.dy_xhat), part_.gather_vector(of_all.dy)}, m);
    replace_gradients();
  }

 private:
  void replace_sums() {
    if (!all_.out.dweight.defined()) return;
    part_.scatter_vector(call_.out.dweight, all_.out.dweight);
    part_.scatter_vector(call_.out.dbias, all_.out.dbias);
  }
  void replace_gradients() {
    if (all_.out.dx.defined()) part_.scatter(call_.out.dx, all_.out.dx);
    replace_dresidual();
  }
  void replace_dresidual() {
    if (all_.out.dresidual.defined()) part_.scatter(call_.out.dresidual, all_.out.dresidual);
  }

  const BackwardCall& all_;
  const ChannelView part_;
  BackwardCall call_;
  std::optional<kernels::PartOfChannels> dz_part_;  ///< if the pass over all channels copies dz and dx
};

/// Returns the means over the whole batch of the group, by one collective.
Sums means_over_group(const Gradients& own, const BackwardArguments& a) {
  const at::Tensor sums = at::cat({own.dweight, own.dbias});
  synchronization::all_reduce(sums, a.group);
  sums.div_(a.count);
  const int64_t channels = own.dbias.numel();
  return {sums.narrow(0, 0, channels), sums.narrow(0, channels, channels)};
}

/// Writes z, computed from the saved tensor with the bytes of forward.
void write_output(const Call& call, const at::Tensor& saved_values, const at::Tensor& mean,
                  const at::Tensor& inv_std, const at::Tensor& z) {
  kernels::AbnForward tensors;
  tensors.x = saved_values.const_data_ptr();
  tensors.saved_values = const_cast<void*>(saved_values.const_data_ptr());  // only read
  tensors.residual = data_or_null(call.residual);
  tensors.weight = data_or_null(call.weight);
  tensors.bias = data_or_null(call.bias);
  tensors.z = z.mutable_data_ptr();
  tensors.mean = const_cast<double*>(mean.const_data_ptr<double>());
  tensors.inv_std = const_cast<double*>(inv_std.const_data_ptr<double>());
  device_for(saved_values).recompute_output(call.problem, tensors, saved_values);
}

/// Runs the pass with statistics over a group: the sums go to the other ranks before dx is computed.
void run_synchronized(const BackwardCall& all, std::optional<SavedChannelsCall>& some,
                      const BackwardArguments& a) {
  all.reduce();
  if (some) some->reduce();
  if (!all.out.dx.defined()) return;
  const Sums means = means_over_group(all.out, a);
  all.apply(means, 1);
  if (some) some->apply(means, 1);
}

/// Fills `out` from `dz`, which has the layout of `saved_values`. out.dx may be dz; it is undefined if
/// neither dx nor dresidual nor z is needed.
void run_backward(const at::Tensor& dz, const at::Tensor& saved_values, const BackwardArguments& a,
                  Gradients& out) {
  if (saved_values.numel() == 0) {
    if (out.dweight.defined()) out.dweight.zero_(), out.dbias.zero_();
    if (is_synchronized(a) && out.dx.defined()) means_over_group(out, a);  // the other ranks wait for it
    return;
  }
  const Call call(saved_values, a.settings);
  const bool has_slots = needs_slots(a.settings.saved);
  if (has_slots && host_runs_ahead(backend_of("abn", saved_values)))
    invertibility::note_backward(a.settings.weight, a.settings.bias);
  const SavedChannels channels(a.channel_values, a.channel_index, saved_values);
  if (has_slots && !channels.any())
    invertibility::check_none_was_saved(call.invertibility_layer(saved_values), saved_values);
  BackwardCall all{call.problem, saved_values, a.branch,  call.residual, dz,          call.weight,
                   call.bias,    a.mean,       a.inv_std, a.training,    a.need_sums, out};
  if (channels.all) {
    if (out.z.defined()) write_output(call, saved_values, a.mean, a.inv_std, out.z);  // forward made it of y
    all.out.z = at::Tensor();
    all.problem.saved = Saved::kNormalized;
    all.saved_values = channels.values;
  }
  std::optional<SavedChannelsCall> some;
  if (channels.any() && !channels.all) {
    if (const auto read = ChannelView(channels, call.problem).in_pass(channels.values))
      all.normalized = *read;
    else
      some.emplace(all, channels, is_synchronized(a));
  }
  if (is_synchronized(a)) return run_synchronized(all, some, a);
  some ? some->run_both() : all.run();
}

/// Returns a vector for one of the two sums, which are the gradients of weight and bias and also lead to dx.
at::Tensor sums_if(bool needed, const at::Tensor& saved_values) {
  if (!needed) return {};
  return at::empty({saved_values.size(1)},
                   saved_values.options().dtype(accumulate_type(saved_values.scalar_type())));
}

/// Returns only the gradients that are needed; the others were intermediate results.
Gradients needed_only(Gradients out, const BackwardArguments& a) {
  if (!a.need_dx) out.dx = at::Tensor();
  if (!a.need_sums) out.dweight = out.dbias = at::Tensor();
  return out;
}

}  // namespace

namespace native {

ForwardResult forward(const at::Tensor& x, const ForwardArguments& a) {
  check_forward_pass(x, a);
  at::Tensor z = empty_output(x);
  const bool contiguous = native_layout(x.sizes(), x.strides()).has_value();
  if (!contiguous) z.copy_(x);  // the one copy lies in the output's memory
  Call call(z, a.settings);
  at::Tensor saved_values = saves_aside(a.settings.saved) ? empty_output(x) : at::Tensor();
  at::Tensor branch = call.branch(x, a.for_backward);
  Statistics statistics = run_forward(contiguous ? x : z, z, saved_values, branch, call, a);
  statistics.branch = std::move(branch);
  return {std::move(z), std::move(saved_values), std::move(statistics)};
}

ForwardResult forward_(const at::Tensor& x, const ForwardArguments& a) {
  check_forward_pass(x, a);
  check_in_place(
      {x, {a.settings.weight, a.settings.bias, a.running_mean, a.running_var}, a.settings.residual},
      a.settings.saved, /*recorded=*/false);
  const at::Tensor written = in_layout_of(x, x);
  Call call(written, a.settings);
  const bool aside = saves_aside(a.settings.saved);
  at::Tensor z = aside ? empty_output(x) : at::Tensor();
  at::Tensor branch = call.branch(x, a.for_backward);
  Statistics statistics =
      run_forward(written, aside ? z : written, aside ? written : at::Tensor(), branch, call, a);
  finish_write(x, written);
  statistics.branch = std::move(branch);
  return {std::move(z), {}, std::move(statistics)};
}

at::Tensor recompute_output(const at::Tensor& saved_values, const Settings& settings, const at::Tensor& mean,
                            const at::Tensor& inv_std) {
  check_output_pass(saved_values, settings, mean, inv_std);
  const at::Tensor contiguous = in_layout_of(saved_values, saved_values);
  const Call call(contiguous, settings);
  at::Tensor z = empty_output(saved_values);
  if (z.numel() > 0) write_output(call, contiguous, mean, inv_std, z);
  return z;
}

Gradients backward(const at::Tensor& dz, const BackwardArguments& a) {
  check_backward_pass(dz, a, /*in_place=*/false);
  const at::Tensor contiguous = in_layout_of(a.saved_values, a.saved_values);
  const at::Tensor contiguous_dz = in_layout_of(contiguous, dz);
  const bool sweeps = a.need_dx || a.need_dresidual || a.need_z;
  const bool reduces = a.need_sums || (a.training && sweeps);
  Gradients out{{}, sums_if(reduces, a.saved_values), sums_if(reduces, a.saved_values), {}, {}};
  // This function owns a converted dz: dx may overwrite it.
  if (sweeps) out.dx = contiguous_dz.is_same(dz) ? empty_output(contiguous) : contiguous_dz;
  if (a.need_dresidual) out.dresidual = empty_output(contiguous);
  if (a.need_z) out.z = empty_output(contiguous);
  run_backward(contiguous_dz, contiguous, a, out);
  return needed_only(std::move(out), a);
}

Gradients backward_(const at::Tensor& dz, const BackwardArguments& a) {
  check_backward_pass(dz, a, /*in_place=*/true);
  const at::Tensor contiguous = in_layout_of(a.saved_values, a.saved_values);
  const at::Tensor contiguous_dz = in_layout_of(contiguous, dz);
  const bool reduces = a.need_sums || a.training;
  Gradients out{contiguous_dz, sums_if(reduces, a.saved_values), sums_if(reduces, a.saved_values), {}, {}};
  if (a.need_dresidual) out.dresidual = empty_output(contiguous);
  if (a.need_z) out.z = empty_output(contiguous);
  run_backward(contiguous_dz, contiguous, a, out);
  finish_write(dz, contiguous_dz);
  return needed_only(std::move(out), a);
}

}  // namespace native

}  // namespace palimpsest::ops::abn_detail
