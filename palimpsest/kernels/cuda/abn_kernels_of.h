#pragma once

#include "palimpsest/kernels/cuda/abn_resident.h"

namespace palimpsest::kernels::cuda {

/// Calls function.template operator()<Walk>() with the walk over the layer's layout, `kWide` vectors wide in
/// channels-last.
template <class S, int kBlock, int kWide, class Function>
void with_walk(const AbnLayer& layer, bool vectors, const Function& function) {
  constexpr int V = kLanes<S>;
  const bool planes = layer.layout == Layout::kNCHW;
  if constexpr (V > 1)
    if (vectors)
      return planes ? function.template operator()<Planes<S, V, kBlock>>()
                    : function.template operator()<Columns<S, V, kBlock, kWide>>();
  planes ? function.template operator()<Planes<S, 1, kBlock>>()
         : function.template operator()<Columns<S, 1, kBlock, kScalarPanel>>();
}

/// Calls function.template operator()<Act, kResidual>(activation). What is common, and so is to be fast, has
/// kernels of its own: straight-line activations in 16-byte steps, with a residual and without. One kernel
/// does the rest, which looks what it has.
template <class S, class Walk, class Function>
void with_activation(const AbnLayer& layer, bool residual, const Function& function) {
  using T = MathsOf<S>;
  const ActivationArguments a{layer.activation_param, precision_of<S>()};
  using Any = AnyActivation<T>;
  using Straight = StraightActivation<T>;
  if constexpr (Walk::kVector > 1)
    if (Straight::covers(layer.activation)) {
      const Straight straight(layer.activation, a);
      return residual ? function.template operator()<Straight, true>(straight)
                      : function.template operator()<Straight, false>(straight);
    }
  function.template operator()<Any, true>(Any(layer.activation, a));
}

template <class S>
void launch_statistics(const AbnLayer& layer, const Geometry& g, const S* x,
                       const StatisticsOutputs<MathsOf<S>>& out, const Workspace& workspace, Stream stream) {
  with_walk<S, kThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    launch("abn_statistics", {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
           statistics_kernel<S, Walk>, g.cut, x, out, workspace);
  });
}

template <class S>
void launch_apply(const AbnLayer& layer, const Geometry& g, const ApplyArguments<S>& t, Stream stream) {
  with_walk<S, kThreads, kApplyPanel>(layer, g.vectors, [&]<class Walk>() {
    with_activation<S, Walk>(layer, t.residual, [&]<class Act, bool kResidual>(const Act& activation) {
      launch("abn_apply", {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
             apply_kernel<S, Walk, Act, kResidual>, g.cut, t, activation);
    });
  });
}

template <class S>
void launch_resident_forward(const AbnLayer& layer, const Geometry& g, const ApplyArguments<S>& t,
                             const StatisticsOutputs<MathsOf<S>>& out, Stream stream) {
  with_walk<S, kResidentThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    with_activation<S, Walk>(layer, t.residual, [&]<class Act, bool kResidual>(const Act& activation) {
      launch("abn_forward",
             {.blocks = int64_t{g.cut.panels} * g.cut.segments,
              .threads = kResidentThreads,
              .shared_bytes = g.shared_bytes,
              .cluster = g.cut.segments},
             stream, resident_forward_kernel<S, Walk, Act, kResidual>, g.cut, t, out, activation);
    });
  });
}

template <class S>
constexpr AbnKernels<S> kAbnKernelsOf = {launch_statistics<S>, launch_apply<S>, launch_resident_forward<S>};

}  // namespace palimpsest::kernels::cuda
