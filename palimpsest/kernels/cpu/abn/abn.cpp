#include "palimpsest/kernels/abn.h"

#include "palimpsest/kernels/cpu/abn/call.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cpu {
namespace abn {
namespace {

void require_channels_last(const AbnProblem& problem, const PartOfChannels& copied) {
  const bool is_channels_last = problem.layout == Layout::kChannelsLast;
  if (copied.part && (!is_channels_last || problem.shape.c == 1))
    throw std::invalid_argument(
        std::string("[abn] a pass copies channels of a channels-last tensor of at least 2 channels, got ") +
        (is_channels_last ? "1 channel"
                          : "NCHW; there use normalized, or gather_channels and scatter_channels"));
}

void require_planes(const AbnProblem& problem, const NormalizedChannels& channels) {
  if (channels.values && (problem.layout != Layout::kNCHW || problem.shape.s < 2))
    throw std::invalid_argument(
        "[abn] a pass writes and reads x-hat of channels of NCHW with 2 pixels or more; in channels-last use "
        "x_part, dz_part and dx_part");
}

}  // namespace
}  // namespace abn

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var) {
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem);
    call.one_sweep([&](const abn::Piece& piece, int64_t segment) {
      call.moments(piece, segment, static_cast<const S*>(x));
    });
    call.for_channels([&](abn::Channels channels) { call.channel_moments(channels, mean, var); });
  });
}

void abn_frozen_statistics(DType dtype, int64_t channels, double eps, const void* running_mean,
                           const void* running_var, double* mean, double* inv_std) {
  dispatch_float(dtype, [&]<class S>() {
    const auto* const means = static_cast<const S*>(running_mean);
    const auto* const vars = static_cast<const S*>(running_var);
    for (int64_t c = 0; c < channels; ++c) {
      mean[c] = static_cast<double>(means[c]);
      inv_std[c] = 1 / std::sqrt(static_cast<double>(vars[c]) + eps);
    }
  });
}

void abn_apply(const AbnProblem& problem, const AbnForward& forward) {
  abn::require_channels_last(problem, forward.x_part);
  abn::require_planes(problem, forward.normalized);
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem, forward.normalized);
    call.for_channels([&](abn::Channels channels) { call.set_forward(channels, forward); });
    call.second_sweep([&](const abn::Piece& piece) { call.apply(piece, forward); });
  });
}

void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running) {
  abn::require_channels_last(problem, forward.x_part);
  abn::require_planes(problem, forward.normalized);
  const auto m = static_cast<double>(problem.shape.per_channel());
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    auto* const running_mean = static_cast<T*>(running.mean);
    auto* const running_var = static_cast<T*>(running.var);
    abn::Call<S> call(problem, forward.normalized);
    call.two_sweeps([](abn::Channels) {},
                    [&](const abn::Piece& piece, int64_t segment) {
                      call.moments(piece, segment, static_cast<const S*>(forward.x));
                    },
                    [&](abn::Channels channels) {
                      call.channel_moments(channels, forward.mean, forward.var);
                      channels.each([&](int64_t c) {
                        forward.inv_std[c] = 1 / std::sqrt(forward.var[c] + eps);
                        if (running_mean) move_running(running_mean[c], forward.mean[c], running.momentum);
                        if (running_var)
                          move_running(running_var[c], forward.var[c] * m / (m - 1), running.momentum);
                      });
                      call.set_forward(channels, forward);
                    },
                    [&](const abn::Piece& piece) { call.apply(piece, forward); });
  });
}

void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward) {
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem);
    call.for_channels([&](abn::Channels channels) { call.set_recompute(channels, forward); });
    call.one_sweep([&](const abn::Piece& piece, int64_t) { call.recompute(piece, forward); });
  });
}

void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward) {
  abn::require_channels_last(problem, backward.dz_part);
  abn::require_planes(problem, backward.normalized);
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem, backward.normalized);
    call.for_channels([&](abn::Channels channels) { call.set_center(channels, backward); });
    call.one_sweep([&](const abn::Piece& piece, int64_t segment) { call.reduce(piece, segment, backward); });
    call.for_channels([&](abn::Channels channels) { call.channel_sums(channels, backward); });
  });
}

void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m) {
  abn::require_channels_last(problem, backward.dx_part);
  abn::require_planes(problem, backward.normalized);
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem, backward.normalized);
    call.for_channels([&](abn::Channels channels) {
      call.set_center(channels, backward);
      call.set_input_gradient(channels, backward, m);
    });
    call.second_sweep([&](const abn::Piece& piece) { call.backward(piece, backward); });
  });
}

void abn_backward(const AbnProblem& problem, const AbnBackward& backward) {
  abn::require_channels_last(problem, backward.dz_part);
  abn::require_planes(problem, backward.normalized);
  if (backward.dx_part.part)
    throw std::invalid_argument("[abn] only abn_backward_apply copies channels of dx");
  dispatch_float(problem.dtype, [&]<class S>() {
    abn::Call<S> call(problem, backward.normalized);
    const double m = static_cast<double>(problem.shape.per_channel());
    const auto set_center = [&](abn::Channels channels) { call.set_center(channels, backward); };
    const auto reduce = [&](const abn::Piece& piece, int64_t segment) {
      call.reduce(piece, segment, backward);
    };
    if (backward.frozen_statistics) {
      call.for_channels([&](abn::Channels channels) {
        set_center(channels);
        call.set_input_gradient(channels, backward, m);
      });
      call.one_sweep([&](const abn::Piece& piece, int64_t segment) {
        reduce(call.for_first_sweep(piece), segment);
        call.backward(piece, backward);
      });
      return call.for_channels([&](abn::Channels channels) { call.channel_sums(channels, backward); });
    }
    call.two_sweeps(
        set_center, reduce,
        [&](abn::Channels channels) {
          call.channel_sums(channels, backward);
          call.set_input_gradient(channels, backward, m);
        },
        [&](const abn::Piece& piece) { call.backward(piece, backward); });
  });
}

}  // namespace palimpsest::kernels::cpu
