#include "palimpsest/kernels/cuda/abn.h"

#include "palimpsest/kernels/cuda/abn/apply.cuh"
#include "palimpsest/kernels/cuda/abn/gradient.cuh"
#include "palimpsest/kernels/cuda/abn/moments.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/channel_slots.h"
#include "palimpsest/kernels/cuda/device/clusters.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <initializer_list>
#include <numeric>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {
namespace {

using namespace abn_detail;

/// How many blocks a launch is cut into, as far as each thread has kLeastVectors.
struct BlockCount {
  int64_t most;     ///< blocks that a large tensor gets
  int64_t filling;  ///< blocks that occupy every multiprocessor at once; a small tensor gets as many
  int64_t vectors;  ///< per thread: as many pay for what a block does before and after them
  int64_t most_segments;
};
// Measured on an H100. In channels-last two blocks of statistics_kernel per multiprocessor, one of which may report slots,
// and three of backward_reduce_kernel have enough bytes under way; more leave the last block of a panel more segments to
// add up.
constexpr BlockCount kPlaneSums{kReduceBlocks, 480, 16, kReduceBlocks},
    kColumnStatistics{263, 250, 16, kMostColumnSegments}, kColumnGradients{396, 380, 16, kMostColumnSegments},
    kApply{8192, 480, 8, 8192};

/// Returns the same memory in the layout that suits the kernels best: without pixels NCHW is channels-last,
/// and a single channel is one long plane, or one per image if it has too many values.
AbnProblem simplified(AbnProblem problem) {
  if (const Shape3& shape = problem.shape; shape.c == 1 && (shape.s > 1 || shape.n <= kMostPieces)) {
    problem.layout = Layout::kNCHW;
    if (shape.per_channel() <= kMostPieces) problem.shape = {1, 1, shape.n * shape.s};
  } else if (problem.shape.s == 1) {
    problem.layout = Layout::kChannelsLast;
  }
  return problem;
}

/// Returns the number of values from the last multiple of 16 bytes to each address, or -1 if the addresses
/// differ in this number. Null addresses do not count.
template <class S>
int common_lead(std::initializer_list<const void*> addresses) {
  int lead = -1;
  for (const void* address : addresses) {
    if (!address) continue;
    const auto off = static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16 / sizeof(S));
    if (lead >= 0 && off != lead) return -1;
    lead = off;
  }
  return lead;
}

template <class S>
int lead_of(const ApplyArguments<S>& arguments) {
  return common_lead<S>({arguments.x, arguments.residual, arguments.z, arguments.saved_values});
}

template <class S>
int lead_of(const BackwardArguments<S>& arguments) {
  return common_lead<S>({arguments.saved_values, arguments.residual, arguments.dz, arguments.dx,
                         arguments.dresidual, arguments.z});
}

int counted(const AbnProblem& problem, int64_t count) {
  if (count > kMostPieces)
    throw std::invalid_argument(
        "[abn] a channel may have up to 2^31 - 2^16 vectors of 16 bytes and a tensor as many "
        "pixels (in NCHW: an image), got a shape (N, C, S) of (" +
        std::to_string(problem.shape.n) + ", " + std::to_string(problem.shape.c) + ", " +
        std::to_string(problem.shape.s) + "): split the batch");
  return static_cast<int>(count);
}

/// Returns the values of a vector in channels-last: as many as divide the channels and every address.
template <class S>
int column_vector(const AbnProblem& problem, int lead) {
  int vector = lead < 0 ? 1 : kLanes<S>;
  while (problem.shape.c % vector != 0 || lead % vector != 0) vector /= 2;
  return vector;
}

/// Cuts the tensor into panels with rows of at most `panel_bytes` bytes, with one segment per panel.
template <class S>
Geometry whole_panels(const AbnProblem& problem, int lead, int panel_bytes) {
  constexpr int V = kLanes<S>, kSectorBytes = 32;  // that memory reads at least
  Geometry geometry;
  Cut& cut = geometry.cut;
  const Shape3& shape = problem.shape;
  cut.shape = shape;
  if (problem.layout == Layout::kNCHW) {
    const bool vectors = V > 1 && lead >= 0 && shape.s >= 2 * V;
    geometry.vector = vectors ? V : 1;
    cut.panels = counted(problem, shape.c);
    const bool all_aligned = lead == 0 && shape.s % V == 0;
    cut.pieces = counted(problem, shape.n * (counted(problem, shape.s) / geometry.vector));
    cut.edges = vectors && !all_aligned ? counted(problem, shape.n * 2 * (V - 1)) : 0;
    cut.lead = vectors ? lead : 0;
  } else {
    const int vector = geometry.vector = column_vector<S>(problem, lead);
    const int64_t row = counted(problem, shape.c) / vector;
    cut.wide = panel_width(row, most_wide<S>(vector, panel_bytes),
                           std::max(1, kSectorBytes / (vector * static_cast<int>(sizeof(S)))));
    cut.panels = counted(problem, ceil_divide(row, cut.wide));
    cut.pieces = counted(problem, shape.n * shape.s);
  }
  return geometry;
}

/// Cuts the tensor into panels and segments of them for a launch without clusters.
template <class S>
Geometry streaming_geometry(const AbnProblem& problem, int lead, const BlockCount& count) {
  Geometry geometry = whole_panels<S>(problem, lead, kPanelBytes);
  const int64_t vectors = int64_t{geometry.cut.pieces} * geometry.cut.wide;  // per panel
  const int64_t panels = geometry.cut.panels;
  const int64_t good = std::min(count.most / panels, vectors / (kThreads * count.vectors));
  const int64_t filling = std::min(ceil_divide(count.filling, panels), vectors / (kThreads * kLeastVectors));
  geometry.cut.segments =
      static_cast<int>(std::clamp<int64_t>(std::max(good, filling), 1, count.most_segments));
  return geometry;
}

template <class S>
Geometry statistics_geometry(const AbnProblem& problem, int lead) {
  return streaming_geometry<S>(problem, lead,
                               problem.layout == Layout::kNCHW ? kPlaneSums : kColumnStatistics);
}

template <class S>
Geometry gradients_geometry(const AbnProblem& problem, int lead) {
  return streaming_geometry<S>(problem, lead,
                               problem.layout == Layout::kNCHW ? kPlaneSums : kColumnGradients);
}

template <class S>
Geometry apply_geometry(const AbnProblem& problem, int lead) {
  return streaming_geometry<S>(problem, lead, kApply);
}

/// Returns whether rows of so many vectors leave a quarter of a resident block's threads without work at
/// most.
bool rows_fill_a_block(int64_t wide) {
  return wide <= kResidentThreads && 4 * (kResidentThreads / wide * wide) >= 3 * kResidentThreads;
}

/// Cuts small planes into strips of channels or of one channel (device/strips.cuh) for a resident launch that
/// keeps `tensors` tensors: 1, forward, or 2, backward. cut.channels is 0 if the tensor has no such planes,
/// or its channels and address do not allow it.
template <class S>
Geometry whole_strips(const AbnProblem& problem, int lead, int tensors) {
  using T = accumulate_t<S>;
  constexpr int V = kLanes<S>;
  Geometry geometry;
  const Shape3& shape = problem.shape;
  if (V == 1 || problem.layout != Layout::kNCHW || lead != 0 || shape.s < V || shape.s > kResidentThreads * V)
    return geometry;
  int64_t channels = V / std::gcd(shape.s, int64_t{V});
  int64_t wide = channels * shape.s / V;
  if (shape.c % channels != 0 || (channels > 1 && wide > kMostStrip)) return geometry;
  while (2 * wide <= kMostStrip && 2 * channels <= kMostStripChannels && shape.c % (2 * channels) == 0 &&
         shape.c / (2 * channels) >= kLeastStrips && shape.n * 2 * wide * 16 <= kWideStripBytes)
    channels *= 2, wide *= 2;
  if (channels == 1 && !rows_fill_a_block(wide)) return geometry;
  geometry.vector = V;
  Cut& cut = geometry.cut;
  cut.shape = shape;
  cut.panels = counted(problem, shape.c / channels);
  cut.pieces = counted(problem, shape.n);
  cut.wide = static_cast<int>(wide), cut.channels = static_cast<int>(channels);
  cut.rows = kResidentThreads / cut.wide;
  cut.next = cut.rows * shape.c * shape.s;
  cut.by_wide = Divisor<int32_t>(cut.wide), cut.by_pixels = Divisor<int32_t>(static_cast<int32_t>(shape.s));
  if (channels == 1) return geometry;
  using Forward = PanelForward<T, V, kMostStrip * V>;
  using Backward = GradientCoefficients<T, V, kMostStrip * V>;
  const int sums = strip_sum_bytes<T, 2>(cut);
  const int bytes = tensors == 1 ? std::max<int>(sizeof(Forward), sums)
                                 : std::max<int>(sizeof(Backward), offsetof(Backward, per_dy) + sums);
  cut.scratch = (bytes + 15) / 16 * 16;
  return geometry;
}

/// Returns how many blocks may share a panel, a power of two: no more than it has rows, where these are few.
int most_blocks(const Cut& cut, int max_cluster) {
  return cut.channels == 0
             ? max_cluster
             : std::min(max_cluster, static_cast<int>(std::bit_floor(static_cast<unsigned>(cut.pieces))));
}

/// Returns whether one launch that keeps the panels of `tensors` tensors in shared memory, each panel in one
/// cluster of blocks, is the best choice with this geometry. If so, sets what is left of it.
///   static_bytes       shared memory per block that the kernel declares besides, and that the device adds
///   active(geometry)   clusters of that launch that the device runs at once
template <class S, class Active>
bool fits_on_chip(const AbnProblem& problem, int tensors, bool residual, int64_t static_bytes,
                  Geometry& geometry, const Active& active) {
  const Device device = current_device();
  Cut& cut = geometry.cut;
  const auto share = [&](int64_t blocks) {
    const int64_t vector = geometry.vector * static_cast<int64_t>(sizeof(S));
    return tensors * (ceil_divide(cut.pieces, blocks) * cut.wide * vector +
                      ceil_divide(cut.edges, blocks) * static_cast<int64_t>(sizeof(S)));
  };
  const auto set_blocks = [&](int blocks) {
    cut.segments = blocks;
    geometry.shared_bytes = static_cast<std::size_t>(cut.scratch + share(blocks));
  };
  const ResidentWork work{.panels = cut.panels,
                          .bytes = problem.shape.elements() * static_cast<int64_t>(sizeof(S)),
                          .passes = tensors + 1 + residual,
                          .passes_of_two = 2 * tensors + 1 + residual,
                          .shared = device.shared_bytes_per_block,
                          .besides = static_bytes + cut.scratch,
                          .multiprocessors = device.multiprocessors,
                          .max_cluster = most_blocks(cut, device.max_cluster)};
  const int blocks = blocks_per_panel(work, share, [&](int asked) {
    set_blocks(asked);
    return active(geometry);
  });
  set_blocks(std::max(1, blocks));
  return blocks > 0;
}

/// fits_on_chip with the first geometry for which it is so: in strips, or in panels as the other launches
/// have them.
template <class S, class Active>
bool fits_on_chip(const AbnProblem& problem, int lead, int tensors, bool residual, Geometry& geometry,
                  const Active& active) {
  constexpr int64_t kStaticBytes = (sizeof(S) == 8 ? 13 : 12) * 1024;
  const int64_t strip_static_bytes = (tensors == 1 ? 4 : 3) * 1024;
  geometry = whole_strips<S>(problem, lead, tensors);
  if (geometry.cut.channels > 0 &&
      fits_on_chip<S>(problem, tensors, residual, strip_static_bytes, geometry, active))
    return true;
  geometry = whole_panels<S>(problem, lead, kResidentPanelBytes);
  return fits_on_chip<S>(problem, tensors, residual, kStaticBytes, geometry, active);
}

template <class S>
StatisticsOutputs<accumulate_t<S>> outputs_of(double* mean, double* var, double* inv_std, double eps,
                                              const RunningStatistics& running) {
  using T = accumulate_t<S>;
  return {
      mean, var, inv_std, eps, static_cast<T*>(running.mean), static_cast<T*>(running.var), running.momentum};
}

/// Returns the arguments of a launch that computes z from `x`, which is the tensor that `source` names, and
/// stores the tensor that `saved` names.
template <class S>
ApplyArguments<S> apply_arguments(const AbnProblem& problem, const AbnForward& forward, const void* x,
                                  Saved source, Saved saved) {
  using T = accumulate_t<S>;
  return {static_cast<const S*>(x),
          static_cast<const S*>(forward.residual),
          static_cast<S*>(forward.z),
          saves_aside(saved) ? static_cast<S*>(forward.saved_values) : nullptr,
          residual_floor<T>(problem.relu_residual),
          saved,
          source,
          static_cast<const T*>(forward.weight),
          static_cast<const T*>(forward.bias),
          forward.mean,
          forward.inv_std,
          forward.branch,
          minimum_at<T>(problem.activation)};
}

template <class S>
BackwardArguments<S> backward_arguments(const AbnProblem& problem, const AbnBackward& backward, double m) {
  using T = accumulate_t<S>;
  return {
      static_cast<const S*>(backward.saved_values), static_cast<const S*>(backward.residual),
      static_cast<const S*>(backward.dz), backward.branch, static_cast<S*>(backward.dx),
      static_cast<S*>(backward.dresidual),
      is_before_activation(problem.saved) ? static_cast<S*>(backward.z) : nullptr,
      residual_floor<T>(problem.relu_residual), backward.frozen_statistics,
      // Form I divides y - bias by the weight, per value. Here the coefficients of a channel do, as in form II.
      problem.saved == Saved::kOutputForm1 ? Saved::kOutput : problem.saved,
      static_cast<const T*>(backward.weight), static_cast<const T*>(backward.bias), backward.mean,
      backward.inv_std, static_cast<T*>(backward.sum_dy), static_cast<T*>(backward.sum_dy_xhat), m};
}

/// Returns whether one block of a forward launch makes this choice.
bool is_reported_on_the_way(const SlotChoice& choice) {
  return !choice.tensors.residual && !choice.tensors.index && choice.problem.shape.c <= kMostReportedChannels;
}

/// Returns the arguments of a launch that makes this choice; null: none.
SlotArguments slot_arguments(const SlotChoice* choice) {
  if (!choice) return {{}, InvertibilityCriterion(Activation::kIdentity, DType::f32)};
  const AbnProblem& p = choice->problem;
  return {choice->tensors, InvertibilityCriterion(p.activation, p.dtype, p.activation_param)};
}

// One launch each. `problem` is simplified.

template <class S>
void run_statistics(const AbnProblem& problem, const S* x, const StatisticsOutputs<accumulate_t<S>>& outputs,
                    const SlotArguments& slots, const Queue& queue) {
  const Geometry geometry = statistics_geometry<S>(problem, common_lead<S>({x}));
  with_workspace(queue, geometry.cut.segments > 1, [&](const Workspace& workspace) {
    launch_table<S>().statistics(problem, geometry, x, outputs, workspace, slots, queue.stream);
  });
}

template <class S>
void run_apply(const AbnProblem& problem, const ApplyArguments<S>& arguments, bool follows,
               const Queue& queue) {
  launch_table<S>().apply(problem, apply_geometry<S>(problem, lead_of(arguments)), arguments, follows,
                          queue.stream);
}

template <class S>
void run_backward_reduce(const AbnProblem& problem, const BackwardArguments<S>& arguments,
                         const Queue& queue) {
  const int lead = common_lead<S>({arguments.saved_values, arguments.residual, arguments.dz});
  const Geometry geometry = gradients_geometry<S>(problem, lead);
  with_workspace(queue, geometry.cut.segments > 1, [&](const Workspace& workspace) {
    launch_table<S>().backward_reduce(problem, geometry, arguments, workspace, queue.stream);
  });
}

template <class S>
void run_backward_apply(const AbnProblem& problem, const BackwardArguments<S>& arguments, bool follows,
                        const Queue& queue) {
  launch_table<S>().backward_apply(problem, apply_geometry<S>(problem, lead_of(arguments)), arguments,
                                   follows, queue.stream);
}

}  // namespace

int64_t abn_workspace_bytes(const AbnProblem& problem) {
  int segments = 1;
  if (problem.shape.elements() > 0)
    dispatch_float(problem.dtype, [&]<class S>() {
      const AbnProblem simple = simplified(problem);
      for (const int lead : {-1, 0, 1, 2, 4})  // the addresses are not known yet
        segments = std::max({segments, statistics_geometry<S>(simple, lead).cut.segments,
                             gradients_geometry<S>(simple, lead).cut.segments});
    });
  if (segments == 1) return 0;
  // Moments are larger than GradientSums.
  return segments * problem.shape.c * static_cast<int64_t>(sizeof(Moments));
}

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var, const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    run_statistics<S>(simplified(problem), static_cast<const S*>(x), outputs_of<S>(mean, var, nullptr, 0, {}),
                      slot_arguments(nullptr), queue);
  });
}

void abn_apply(const AbnProblem& problem, const AbnForward& forward, const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    run_apply(simplified(problem),
              apply_arguments<S>(problem, forward, forward.x, Saved::kInput, problem.saved),
              /*follows=*/false, queue);
  });
}

void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running, const Queue& queue, const SlotChoice* choice) {
  if (problem.shape.elements() == 0) return;
  if (choice && !is_reported_on_the_way(*choice)) {
    choose_slots(choice->problem, choice->tensors, queue);
    choice = nullptr;
  }
  const SlotArguments slots = slot_arguments(choice);
  dispatch_float(problem.dtype, [&]<class S>() {
    const AbnProblem simple = simplified(problem);
    const auto arguments = apply_arguments<S>(problem, forward, forward.x, Saved::kInput, problem.saved);
    const auto outputs = outputs_of<S>(forward.mean, forward.var, forward.inv_std, eps, running);
    Geometry geometry;
    const LaunchTable<S>& table = launch_table<S>();
    const bool residual = arguments.residual;
    if (fits_on_chip<S>(simple, lead_of(arguments), 1, residual, geometry,
                        [&](const Geometry& g) { return table.forward_clusters(simple, g, residual); }))
      return table.resident_forward(simple, geometry, arguments, outputs, slots, queue.stream);
    run_statistics(simple, arguments.x, outputs, slots, queue);
    run_apply(simple, arguments, /*follows=*/true, queue);
  });
}

int64_t abn_forward_workspace_bytes(const AbnProblem& problem, const SlotChoice* choice) {
  const int64_t bytes = abn_workspace_bytes(problem);
  if (!choice || is_reported_on_the_way(*choice)) return bytes;
  return std::max(bytes, choose_slots_workspace_bytes(choice->problem));  // one launch after the other
}

void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward, const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    run_apply(simplified(problem),
              apply_arguments<S>(problem, forward, forward.saved_values, problem.saved, Saved::kOutput),
              /*follows=*/false, queue);
  });
}

void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward, const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    run_backward_reduce(simplified(problem), backward_arguments<S>(problem, backward, 1), queue);
  });
}

void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m,
                        const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    run_backward_apply(simplified(problem), backward_arguments<S>(problem, backward, m), /*follows=*/false,
                       queue);
  });
}

void abn_backward(const AbnProblem& problem, const AbnBackward& backward, const Queue& queue) {
  if (problem.shape.elements() == 0) return;
  if (backward.frozen_statistics) {
    abn_backward_reduce(problem, backward, queue);
    return abn_backward_apply(problem, backward, 1, queue);
  }
  dispatch_float(problem.dtype, [&]<class S>() {
    const AbnProblem simple = simplified(problem);
    const auto arguments =
        backward_arguments<S>(problem, backward, static_cast<double>(problem.shape.per_channel()));
    const LaunchTable<S>& table = launch_table<S>();
    Geometry geometry;
    const bool residual = arguments.residual;
    if (fits_on_chip<S>(simple, lead_of(arguments), 2, residual, geometry,
                        [&](const Geometry& g) { return table.backward_clusters(simple, g, residual); }))
      return table.resident_backward(simple, geometry, arguments, queue.stream);
    run_backward_reduce(simple, arguments, queue);
    run_backward_apply(simple, arguments, /*follows=*/true, queue);
  });
}

}  // namespace palimpsest::kernels::cuda
