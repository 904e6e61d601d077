#include "palimpsest/kernels/cuda/channel_slots.h"

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/slot_report.cuh"
#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/cuda/device/workspace.h"
#include "palimpsest/kernels/formulas/channel_slots.h"

namespace palimpsest::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / static_cast<int>(kWarp);

/// Returns the root mean square of channel c's sample, in every lane of the warp that computes it.
template <class S>
__device__ __forceinline__ double sampled_rms(const AbnProblem& problem, const S* residual, int64_t c) {
  const ResidualSample sample(problem.shape, problem.layout);
  double squares = 0;
  for (int64_t i = threadIdx.x % kWarp; i < sample.values(); i += kWarp) {
    const auto value = static_cast<double>(widen(residual[sample.at(c, i)]));
    if (value > 0 || !problem.relu_residual) squares += value * value;
  }
  return sqrt(warp_sum(squares) / static_cast<double>(sample.values()));
}

/// Returns the number of threads before this one for which `flag` holds. All threads of the block call it.
__device__ __forceinline__ int threads_before(bool flag, int& of_block) {
  PALIMPSEST_SHARED(of_warps, int[kWarps]);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned set = __ballot_sync(kAllLanes, flag);
  if (lane == 0) of_warps[warp] = __popc(set);
  __syncthreads();
  int before = __popc(set & ((1u << lane) - 1));
  of_block = 0;
  PALIMPSEST_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    if (w < static_cast<int>(warp)) before += of_warps[w];
    of_block += of_warps[w];
  }
  __syncthreads();
  return before;
}

/// Grid: one thread per channel, or one warp if there is a residual to sample. The last block numbers the
/// channels. `outlooks`: (C).
template <class S>
__global__ void __launch_bounds__(kThreads)
    choose_slots_kernel(AbnProblem problem, ChannelSlots tensors, InvertibilityCriterion criterion,
                        unsigned* counter, Outlook* outlooks) {
  using T = accumulate_t<S>;
  const int64_t channels = problem.shape.c;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t c = tensors.residual ? thread / kWarp : thread;
  if (c < channels) {
    const double rms =
        tensors.residual ? sampled_rms(problem, static_cast<const S*>(tensors.residual), c) : 0;
    const Outlook outlook = outlook_of_channel<T>(tensors, criterion, c, rms);
    if (!tensors.residual || threadIdx.x % kWarp == 0) outlooks[c] = outlook;
  }
  if (!is_last_block(counter, gridDim.x)) return;

  const int64_t wanted = report_outlooks<kThreads>(tensors, channels, [&](int64_t i) { return outlooks[i]; });
  if (!tensors.index) return;
  int64_t wanted_before = 0;
  for (int64_t first = 0; first < channels; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_wanted = i < channels && outlooks[i] == Outlook::kNonInvertible;
    int of_block = 0;
    const int64_t before = wanted_before + threads_before(is_wanted, of_block);
    const int64_t slot = is_wanted ? before : wanted + (i - before);
    if (i < channels && slot < tensors.slots) tensors.index[slot] = is_wanted ? i : i - channels;
    wanted_before += of_block;
  }
}

}  // namespace

int64_t choose_slots_workspace_bytes(const AbnProblem& problem) {
  return problem.shape.c * static_cast<int64_t>(sizeof(Outlook));
}

void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors, const Queue& queue) {
  const int64_t threads = problem.shape.c * (tensors.residual ? kWarp : 1);
  const LaunchShape shape{.blocks = ceil_divide(threads, kThreads), .threads = kThreads};
  const InvertibilityCriterion criterion(problem.activation, problem.dtype, problem.activation_param);
  dispatch_float(problem.dtype, [&]<class S>() {
    with_workspace(queue, true, [&](const Workspace& workspace) {
      launch("choose_slots", shape, queue.stream, choose_slots_kernel<S>, problem, tensors, criterion,
             workspace.counters, static_cast<Outlook*>(workspace.records));
    });
  });
}

}  // namespace palimpsest::kernels::cuda
