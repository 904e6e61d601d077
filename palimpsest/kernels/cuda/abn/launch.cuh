#pragma once

#include "palimpsest/kernels/cuda/abn/resident_backward.cuh"
#include "palimpsest/kernels/cuda/abn/resident_forward.cuh"

namespace palimpsest::kernels::cuda {

/// Calls function.template operator()<Walk>() with the walk over the layer's layout, `kWide` vectors wide in
/// channels-last.
template <class S, int kBlock, int kWide, class Function>
void with_walk(const AbnProblem& layer, bool vectors, const Function& function) {
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
void with_activation(const AbnProblem& layer, bool residual, const Function& function) {
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

/// The same for backward, of a layer that kept z and a bit with the activations that have one.
template <class S, class Walk, class Function>
void with_gradient_activation(const AbnProblem& layer, bool residual, const Function& function) {
  using Branch = BranchActivation<MathsOf<S>>;
  if (layer.saved == Saved::kOutputBit)
    return function.template operator()<Branch, true>(
        Branch(layer.activation, {layer.activation_param, precision_of<S>()}));
  with_activation<S, Walk>(layer, residual, function);
}

template <class S>
void launch_statistics(const AbnProblem& layer, const Geometry& g, const S* x,
                       const StatisticsOutputs<MathsOf<S>>& out, const Workspace& workspace, Stream stream) {
  with_walk<S, kThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    launch("abn_statistics", {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
           statistics_kernel<S, Walk>, g.cut, x, out, workspace);
  });
}

template <class S>
void launch_apply(const AbnProblem& layer, const Geometry& g, const ApplyArguments<S>& t, Stream stream) {
  with_walk<S, kThreads, kApplyPanel>(layer, g.vectors, [&]<class Walk>() {
    with_activation<S, Walk>(layer, t.residual, [&]<class Act, bool kResidual>(const Act& activation) {
      launch("abn_apply", {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
             apply_kernel<S, Walk, Act, kResidual>, g.cut, t, activation);
    });
  });
}

template <class S>
void launch_resident_forward(const AbnProblem& layer, const Geometry& g, const ApplyArguments<S>& t,
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
void launch_reduce(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t,
                   const Workspace& workspace, Stream stream) {
  with_walk<S, kThreads, kReducePanel>(layer, g.vectors, [&]<class Walk>() {
    with_gradient_activation<S, Walk>(
        layer, t.residual, [&]<class Act, bool kResidual>(const Act& activation) {
          launch("abn_backward_reduce",
                 {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
                 backward_reduce_kernel<S, Walk, Act, kResidual>, g.cut, t, activation, workspace);
        });
  });
}

template <class S>
void launch_propagate(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t,
                      Stream stream) {
  with_walk<S, kThreads, kApplyPanel>(layer, g.vectors, [&]<class Walk>() {
    with_gradient_activation<S, Walk>(
        layer, t.residual, [&]<class Act, bool kResidual>(const Act& activation) {
          launch("abn_backward_apply",
                 {.blocks = int64_t{g.cut.panels} * g.cut.segments, .threads = kThreads}, stream,
                 backward_apply_kernel<S, Walk, Act, kResidual>, g.cut, t, activation);
        });
  });
}

/// Of what memory bounds: straight activations in 16-byte steps. The maths of the others leaves no registers
/// for what this launch has under way besides, and gains less from it.
template <class S>
bool has_resident_backward(const AbnProblem& layer, const Geometry& g) {
  return kLanes<S> > 1 && g.vectors && StraightActivation<MathsOf<S>>::covers(layer.activation);
}

template <class S>
void launch_resident_backward(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t,
                              Stream stream) {
  if constexpr (kLanes<S> > 1) {
    using Straight = StraightActivation<MathsOf<S>>;
    const auto launch_over = [&]<class Walk, bool kResidual>() {
      launch("abn_backward",
             {.blocks = int64_t{g.cut.panels} * g.cut.segments,
              .threads = kResidentThreads,
              .shared_bytes = g.shared_bytes,
              .cluster = g.cut.segments},
             stream, resident_backward_kernel<S, Walk, Straight, kResidual>, g.cut, t,
             Straight(layer.activation, {layer.activation_param, precision_of<S>()}));
    };
    const auto with_residual = [&]<class Walk>() {
      t.residual ? launch_over.template operator()<Walk, true>()
                 : launch_over.template operator()<Walk, false>();
    };
    constexpr int V = kLanes<S>;
    layer.layout == Layout::kNCHW
        ? with_residual.template operator()<Planes<S, V, kResidentThreads>>()
        : with_residual.template operator()<Columns<S, V, kResidentThreads, kReducePanel>>();
  }
}

template <class S>
constexpr AbnKernels<S> kAbnKernelsOf = {
    launch_statistics<S>, launch_apply<S>,          launch_resident_forward<S>, launch_reduce<S>,
    launch_propagate<S>,  has_resident_backward<S>, launch_resident_backward<S>};

}  // namespace palimpsest::kernels::cuda
