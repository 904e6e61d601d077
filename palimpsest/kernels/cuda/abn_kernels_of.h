#pragma once

#include "palimpsest/kernels/cuda/abn_resident.h"

namespace palimpsest::kernels::cuda {

/// Calls function.template operator()<Walk>() with the walk over the layer's layout, `kWide` vectors wide in
/// channels-last.
template <class S, int kBlock, int kWide, class Function>
void with_walk(const AbnLayer& layer, bool vectors, const Function& function) {
  constexpr int V = kLanes<S>;
  if (layer.layout == Layout::kNCHW)
    vectors ? function.template operator()<Planes<S, V, kBlock>>()
            : function.template operator()<Planes<S, 1, kBlock>>();
  else
    vectors ? function.template operator()<Columns<S, V, kBlock, kWide>>()
            : function.template operator()<Columns<S, 1, kBlock, kScalarPanel>>();
}

/// Calls function(activation): leaky ReLU by itself in 16-byte steps and f32 maths, else whichever it is.
template <class S, class Walk, class Function>
void with_activation(const AbnLayer& layer, const Function& function) {
  using T = MathsOf<S>;
  const ActivationArguments a{layer.activation_param, precision_of<S>()};
  if constexpr (Walk::kVector > 1 && sizeof(S) < 8)
    if (OnlyLeakyReLU<T>::covers(layer.activation)) return function(OnlyLeakyReLU<T>(layer.activation, a));
  function(AnyActivation<T>(layer.activation, a));
}

template <class S>
void launch_statistics(const AbnLayer& layer, const Geometry& g, const S* x,
                       const StatisticsOutputs<MathsOf<S>>& out, const Workspace& workspace, Stream stream) {
  with_walk<S, kThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    launch("abn_statistics", {.blocks = g.cut.panels * g.cut.segments, .threads = kThreads}, stream,
           statistics_kernel<S, Walk>, g.cut, x, out, workspace);
  });
}

template <class S>
void launch_apply(const AbnLayer& layer, const Geometry& g, const ApplyArguments<S>& t, Stream stream) {
  with_walk<S, kThreads, kApplyPanel>(layer, g.vectors, [&]<class Walk>() {
    with_activation<S, Walk>(layer, [&]<class Act>(const Act& activation) {
      launch("abn_apply", {.blocks = g.cut.panels * g.cut.segments, .threads = kThreads}, stream,
             apply_kernel<S, Walk, Act>, g.cut, t, activation);
    });
  });
}

template <class S>
void launch_resident_forward(const AbnLayer& layer, const Geometry& g, const ApplyArguments<S>& t,
                             const StatisticsOutputs<MathsOf<S>>& out, Stream stream) {
  with_walk<S, kResidentThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    with_activation<S, Walk>(layer, [&]<class Act>(const Act& activation) {
      launch("abn_forward",
             {.blocks = g.cut.panels * g.cut.segments,
              .threads = kResidentThreads,
              .shared_bytes = g.shared_bytes,
              .cluster = static_cast<int>(g.cut.segments)},
             stream, resident_forward_kernel<S, Walk, Act>, g.cut, t, out, activation);
    });
  });
}

template <class S>
constexpr AbnKernels<S> kAbnKernelsOf = {launch_statistics<S>, launch_apply<S>, launch_resident_forward<S>};

}  // namespace palimpsest::kernels::cuda
