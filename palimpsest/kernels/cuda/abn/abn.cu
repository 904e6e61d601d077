#include "palimpsest/kernels/cuda/abn.h"

#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/device/workspace.cuh"
#include "palimpsest/kernels/formulas/branch_inverse.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {
namespace {

// Blocks that a launch is cut into where it can be: several waves of them on the largest device, so that the
// last wave, which is never full, is a small part of all. Fixed, as sums must not depend on the device.
constexpr int64_t kReduceBlocks = 4096, kColumnReduceBlocks = 2048, kApplyBlocks = 8192;
// One block puts a panel's segments together: 256 of them take it 1 to 2 us.
constexpr int64_t kMostColumnSegments = 256;
// Vectors that a thread has at least, so that a batch of loads is under way.
constexpr int64_t kLeastVectors = 4;
// Pieces of a panel, pixels and images are counted in 32 bits, and a walk steps past the end by some
// thousands.
constexpr int64_t kMostPieces = (int64_t{1} << 31) - (1 << 16);
static_assert(kReduceBlocks / 2 <= kMostPanelsInSegments);

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The same memory as the kernels prefer to see it: without pixels NCHW is channels-last, and a single
/// channel is one long plane.
AbnProblem simplified(AbnProblem layer) {
  if (layer.shape.c == 1 && layer.shape.per_channel() <= kMostPieces) {
    layer.layout = Layout::kNCHW;
    layer.shape = {1, 1, layer.shape.n * layer.shape.s};
  } else if (layer.shape.s == 1) {
    layer.layout = Layout::kChannelsLast;
  }
  return layer;
}

/// How many values the addresses lie behind a multiple of 16 bytes, if that is the same for all (null ones do
/// not count); else -1.
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

int counted(const AbnProblem& layer, int64_t count) {
  if (count > kMostPieces)
    throw std::invalid_argument(
        "[abn] a channel may have up to 2^31 - 2^16 vectors of 16 bytes and a tensor as many "
        "pixels (in NCHW: an image), got a shape (N, C, S) of (" +
        std::to_string(layer.shape.n) + ", " + std::to_string(layer.shape.c) + ", " +
        std::to_string(layer.shape.s) + "): split the batch");
  return static_cast<int>(count);
}

/// The cut of a layer into panels of `wide` vectors, in one segment each.
template <class S>
Geometry whole_panels(const AbnProblem& layer, int lead, int wide) {
  constexpr int V = kLanes<S>;
  Geometry g;
  g.cut.shape = layer.shape;
  const Shape3& shape = layer.shape;
  if (layer.layout == Layout::kNCHW) {
    g.vectors = V > 1 && lead >= 0 && shape.s >= 2 * V;
    g.cut.panels = counted(layer, shape.c);
    const bool all_aligned = lead == 0 && shape.s % V == 0;
    g.cut.pieces = counted(layer, shape.n * (counted(layer, shape.s) / (g.vectors ? V : 1)));
    g.cut.edges = g.vectors && !all_aligned ? counted(layer, shape.n * 2 * (V - 1)) : 0;
    g.cut.lead = g.vectors ? lead : 0;
  } else {
    g.vectors = V > 1 && lead == 0 && shape.c % V == 0;
    g.cut.panels = counted(layer, divided_up(counted(layer, shape.c), g.vectors ? wide * V : kScalarPanel));
    g.cut.pieces = counted(layer, shape.n * shape.s);
  }
  return g;
}

/// Vectors that one piece of a panel has.
int piece_vectors(const AbnProblem& layer, const Geometry& g, int wide) {
  return layer.layout == Layout::kNCHW ? 1 : g.vectors ? wide : kScalarPanel;
}

/// Segments that make about `blocks` blocks, at most `most` a panel, and leave each thread enough to do.
int segments_for(const AbnProblem& layer, const Geometry& g, int wide, int64_t blocks, int64_t most) {
  const int64_t vectors = int64_t{g.cut.pieces} * piece_vectors(layer, g, wide);
  const int64_t wanted = std::min({blocks / g.cut.panels, vectors / (kThreads * kLeastVectors), most});
  return static_cast<int>(std::max<int64_t>(1, wanted));
}

template <class S>
Geometry reduce_geometry(const AbnProblem& layer, int lead) {
  Geometry g = whole_panels<S>(layer, lead, kReducePanel);
  g.cut.segments = layer.layout == Layout::kNCHW
                       ? segments_for(layer, g, kReducePanel, kReduceBlocks, kReduceBlocks)
                       : segments_for(layer, g, kReducePanel, kColumnReduceBlocks, kMostColumnSegments);
  return g;
}

template <class S>
Geometry apply_geometry(const AbnProblem& layer, int lead) {
  Geometry g = whole_panels<S>(layer, lead, kApplyPanel);
  g.cut.segments = segments_for(layer, g, kApplyPanel, kApplyBlocks, kApplyBlocks);
  return g;
}

/// Whether the layer's panels of `tensors` tensors can stay on the chip, one in each cluster, and then how:
/// `g`.
template <class S>
bool fits_on_chip(const AbnProblem& layer, int lead, int tensors, Geometry& g) {
  constexpr int64_t kStatic = 12 * 1024;  // what the kernel has besides, and what the device adds
  constexpr int64_t kSmallShare = 16 * 1024;
  const Device device = current_device();
  g = whole_panels<S>(layer, lead, kReducePanel);
  const auto share = [&](int64_t blocks) {
    const int64_t vector = g.vectors ? 16 : static_cast<int64_t>(sizeof(S));
    return tensors * (divided_up(g.cut.pieces, blocks) * piece_vectors(layer, g, kReducePanel) * vector +
                      divided_up(g.cut.edges, blocks) * static_cast<int64_t>(sizeof(S)));
  };
  // Two blocks on a multiprocessor: one reads while the other writes.
  const int64_t room = device.shared_bytes_per_block / 2 - kStatic;
  int blocks = 1;
  while (share(blocks) > room && 2 * blocks <= device.max_cluster) blocks *= 2;
  while (int64_t{g.cut.panels} * blocks < 2 * int64_t{device.multiprocessors} &&
         share(blocks) > kSmallShare && 2 * blocks <= device.max_cluster)
    blocks *= 2;
  if (share(blocks) > room || int64_t{g.cut.panels} * blocks < device.multiprocessors) return false;
  g.cut.segments = blocks;
  g.shared_bytes = static_cast<std::size_t>(share(blocks));
  return true;
}

template <class S>
StatisticsOutputs<MathsOf<S>> outputs(double* mean, double* var, double* inv_std, double eps,
                                      const RunningStatistics& running) {
  using T = MathsOf<S>;
  return {
      mean, var, inv_std, eps, static_cast<T*>(running.mean), static_cast<T*>(running.var), running.momentum};
}

Keep keep_of(const AbnProblem& layer) {
  return layer.saved == Saved::kPreActivation ? Keep::kPreActivation
         : layer.saved == Saved::kNormalized  ? Keep::kNormalized
         : layer.saved == Saved::kOutputBit   ? Keep::kBranch
                                              : Keep::kNothing;
}

template <class S>
ApplyArguments<S> apply_arguments(const AbnProblem& layer, const AbnForward& t, Keep keep, Source source) {
  using T = MathsOf<S>;
  return {
      static_cast<const S*>(source == Source::kInput && t.x ? t.x : t.saved_values),
      static_cast<const S*>(t.residual),
      static_cast<S*>(t.z),
      keep == Keep::kPreActivation || keep == Keep::kNormalized ? static_cast<S*>(t.saved_values) : nullptr,
      layer.relu_residual,
      keep,
      source,
      static_cast<const T*>(t.weight),
      static_cast<const T*>(t.bias),
      t.mean,
      t.inv_std,
      t.branch,
      minimum_at<T>(layer.activation)};
}

template <class S>
BackwardArguments<S> backward_arguments(const AbnProblem& layer, const AbnBackward& t, double m) {
  using T = MathsOf<S>;
  return {static_cast<const S*>(t.saved_values),
          static_cast<const S*>(t.residual),
          static_cast<const S*>(t.dz),
          t.branch,
          static_cast<S*>(t.dx),
          static_cast<S*>(t.dresidual),
          is_before_activation(layer.saved) ? static_cast<S*>(t.z) : nullptr,
          layer.relu_residual,
          !t.sum_dy || !t.sum_dy_xhat,
          layer.saved,
          static_cast<const T*>(t.weight),
          static_cast<const T*>(t.bias),
          t.mean,
          t.inv_std,
          static_cast<T*>(t.sum_dy),
          static_cast<T*>(t.sum_dy_xhat),
          m};
}

/// Of all tensors that backward reads and writes.
template <class S>
int lead_of(const BackwardArguments<S>& t) {
  return common_lead<S>({t.kept, t.residual, t.dz, t.dx, t.dresidual, t.z});
}

template <class S>
void reduce(const AbnProblem& layer, const BackwardArguments<S>& t, const Queue& queue) {
  const int lead = common_lead<S>({t.kept, t.residual, t.dz});
  abn_kernels<S>().reduce(layer, reduce_geometry<S>(layer, lead), t, workspace_of(queue), queue.stream);
}

template <class S>
void propagate(const AbnProblem& layer, const BackwardArguments<S>& t, const Queue& queue) {
  abn_kernels<S>().propagate(layer, apply_geometry<S>(layer, lead_of(t)), t, queue.stream);
}

template <class S>
int lead_of(const ApplyArguments<S>& t) {
  return common_lead<S>({t.x, t.residual, t.z, t.kept});
}

template <class S>
void apply(const AbnProblem& layer, const ApplyArguments<S>& t, const Queue& queue) {
  abn_kernels<S>().apply(layer, apply_geometry<S>(layer, lead_of(t)), t, queue.stream);
}

template <class S>
void statistics(const AbnProblem& layer, const S* x, const StatisticsOutputs<MathsOf<S>>& out,
                const Queue& queue) {
  abn_kernels<S>().statistics(layer, reduce_geometry<S>(layer, common_lead<S>({x})), x, out,
                              workspace_of(queue), queue.stream);
}

}  // namespace

int64_t abn_workspace_bytes(const AbnProblem& layer) {
  int segments = 1;
  if (layer.shape.elements() > 0)
    dispatch_float(layer.dtype, [&]<class S>() {
      const AbnProblem simple = simplified(layer);
      for (const int lead : {-1, 0, 1})  // whatever the addresses will be
        segments = std::max(segments, reduce_geometry<S>(simple, lead).cut.segments);
    });
  return kCounterBytes + (segments > 1 ? segments * layer.shape.c * static_cast<int64_t>(sizeof(Moments))
                                       : 0);  // sums take less
}

void abn_statistics(const AbnProblem& layer, const void* x, double* mean, double* var, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype, [&]<class S>() {
    statistics<S>(simplified(layer), static_cast<const S*>(x), outputs<S>(mean, var, nullptr, 0, {}), queue);
  });
}

void abn_apply(const AbnProblem& layer, const AbnForward& t, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype, [&]<class S>() {
    apply(simplified(layer), apply_arguments<S>(layer, t, keep_of(layer), Source::kInput), queue);
  });
}

void abn_forward(const AbnProblem& layer, double eps, const AbnForward& t, const RunningStatistics& running,
                 const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype, [&]<class S>() {
    const AbnProblem simple = simplified(layer);
    const ApplyArguments<S> arguments = apply_arguments<S>(layer, t, keep_of(layer), Source::kInput);
    const auto out = outputs<S>(t.mean, t.var, t.inv_std, eps, running);
    Geometry g;
    if (fits_on_chip<S>(simple, lead_of(arguments), 1, g))
      return abn_kernels<S>().resident_forward(simple, g, arguments, out, queue.stream);
    statistics(simple, arguments.x, out, queue);
    apply(simple, arguments, queue);
  });
}

void abn_recompute_output(const AbnProblem& layer, const AbnForward& t, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  const Source source = layer.saved == Saved::kPreActivation ? Source::kPreActivation
                        : layer.saved == Saved::kNormalized  ? Source::kNormalized
                                                             : Source::kInput;
  dispatch_float(layer.dtype, [&]<class S>() {
    AbnForward from = t;
    from.x = t.saved_values;
    apply(simplified(layer), apply_arguments<S>(layer, from, Keep::kNothing, source), queue);
  });
}

void abn_backward_reduce(const AbnProblem& layer, const AbnBackward& t, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype,
                 [&]<class S>() { reduce(simplified(layer), backward_arguments<S>(layer, t, 1), queue); });
}

void abn_backward_apply(const AbnProblem& layer, const AbnBackward& t, double m, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype,
                 [&]<class S>() { propagate(simplified(layer), backward_arguments<S>(layer, t, m), queue); });
}

void abn_backward(const AbnProblem& layer, const AbnBackward& t, const Queue& queue) {
  if (layer.shape.elements() == 0) return;
  dispatch_float(layer.dtype, [&]<class S>() {
    const AbnProblem simple = simplified(layer);
    const auto arguments = backward_arguments<S>(layer, t, static_cast<double>(layer.shape.per_channel()));
    Geometry g;
    const AbnKernels<S>& kernels = abn_kernels<S>();
    if (fits_on_chip<S>(simple, lead_of(arguments), 2, g) && kernels.has_resident_backward(simple, g))
      return kernels.resident_backward(simple, g, arguments, queue.stream);
    reduce(simple, arguments, queue);
    propagate(simple, arguments, queue);
  });
}

}  // namespace palimpsest::kernels::cuda
