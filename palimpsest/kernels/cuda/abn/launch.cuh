#pragma once

#include "palimpsest/kernels/cuda/abn/resident_backward.cuh"
#include "palimpsest/kernels/cuda/abn/resident_forward.cuh"

/// Chooses the kernel of a launch for one storage type: the walk over the layout, the activation, the
/// residual.
namespace palimpsest::kernels::cuda::abn_detail {

/// Calls function.template operator()<Walk>() with the walk over the layout: in NCHW in vectors of 16 bytes
/// or single values, in channels-last in vectors of `vector` values, of which at most kPanelBytes make a
/// panel.
template <class S, int kBlock, int kPanelBytes, class Function, int V = kLanes<S>>
void with_walk(const AbnProblem& problem, int vector, const Function& function) {
  if (V > 1 && vector < V) {
    if constexpr (V > 1) with_walk<S, kBlock, kPanelBytes, Function, V / 2>(problem, vector, function);
  } else if (problem.layout == Layout::kChannelsLast) {
    function.template operator()<Columns<S, V, kBlock, most_wide<S>(V, kPanelBytes)>>();
  } else if constexpr (V == 1 || V == kLanes<S>) {
    function.template operator()<Planes<S, V, kBlock>>();
  }
}

/// Calls function.template operator()<Act, kResidual>(activation). The common cases have specialized kernels:
/// straight activations in steps of 16 bytes, with and without a residual, and in shorter vectors without
/// one. All other cases share one kernel that branches at run time.
template <class S, class Walk, class Function>
void with_activation(const AbnProblem& problem, bool residual, const Function& function) {
  using T = accumulate_t<S>;
  const ActivationArguments arguments{problem.activation_param, precision_of<S>()};
  using Any = AnyActivation<T>;
  using Straight = StraightActivation<T>;
  if constexpr (Walk::kVector > 1)
    if (Straight::covers(problem.activation)) {
      const Straight straight(problem.activation, arguments);
      if (!residual) return function.template operator()<Straight, false>(straight);
      if constexpr (Walk::kVector == kLanes<S>) return function.template operator()<Straight, true>(straight);
    }
  function.template operator()<Any, true>(Any(problem.activation, arguments));
}

/// with_activation for backward: Saved::kOutputBit has a kernel of its own.
template <class S, class Walk, class Function>
void with_gradient_activation(const AbnProblem& problem, bool residual, const Function& function) {
  using Branch = BranchActivation<accumulate_t<S>>;
  if (problem.saved == Saved::kOutputBit)
    return function.template operator()<Branch, true>(
        Branch(problem.activation, {problem.activation_param, precision_of<S>()}));
  with_activation<S, Walk>(problem, residual, function);
}

/// One block per segment of a panel.
inline LaunchShape streaming_shape(const Geometry& geometry) {
  return {.blocks = int64_t{geometry.cut.panels} * geometry.cut.segments, .threads = kThreads};
}

/// The same for a launch that may follow another one.
inline LaunchShape following_shape(const Geometry& geometry, bool follows) {
  LaunchShape shape = streaming_shape(geometry);
  shape.follows = follows;
  return shape;
}

/// One cluster of blocks per panel.
inline LaunchShape resident_shape(const Geometry& geometry) {
  return {.blocks = int64_t{geometry.cut.panels} * geometry.cut.segments,
          .threads = kResidentThreads,
          .shared_bytes = geometry.shared_bytes,
          .cluster = geometry.cut.segments};
}

/// Returns a grid with one cluster more (without clusters: one block) if the launch reports a choice.
inline LaunchShape with_report(LaunchShape shape, const SlotArguments& slots) {
  if (slots.tensors.report) shape.blocks += shape.cluster;
  return shape;
}

template <class S>
void launch_statistics(const AbnProblem& problem, const Geometry& geometry, const S* x,
                       const StatisticsOutputs<accumulate_t<S>>& outputs, const Workspace& workspace,
                       const SlotArguments& slots, Stream stream) {
  with_walk<S, kThreads, kPanelBytes>(problem, geometry.vector, [&]<class Walk>() {
    launch("abn_statistics", with_report(streaming_shape(geometry), slots), stream,
           statistics_kernel<S, Walk>, geometry.cut, x, outputs, workspace, slots);
  });
}

template <class S>
void launch_apply(const AbnProblem& problem, const Geometry& geometry, const ApplyArguments<S>& arguments,
                  bool follows, Stream stream) {
  with_walk<S, kThreads, kPanelBytes>(problem, geometry.vector, [&]<class Walk>() {
    with_activation<S, Walk>(
        problem, arguments.residual, [&]<class Act, bool kResidual>(const Act& activation) {
          launch("abn_apply", following_shape(geometry, follows), stream,
                 apply_kernel<S, Walk, Act, kResidual>, geometry.cut, arguments, activation);
        });
  });
}

/// Calls function(kernel, activation) with the kernel of a resident forward.
template <class S, class Function>
void with_resident_forward(const AbnProblem& problem, const Geometry& geometry, bool residual,
                           const Function& function) {
  const auto call = [&]<class Walk>() {
    with_activation<S, Walk>(problem, residual, [&]<class Act, bool kResidual>(const Act& activation) {
      function(resident_forward_kernel<S, Walk, Act, kResidual>, activation);
    });
  };
  if constexpr (kLanes<S> > 1) {
    if (geometry.cut.channels > 1) return call.template operator()<Strips<S, kLanes<S>, kResidentThreads>>();
    if (geometry.cut.channels == 1)
      return call.template operator()<AlignedPlanes<S, kLanes<S>, kResidentThreads>>();
  }
  with_walk<S, kResidentThreads, kResidentPanelBytes>(problem, geometry.vector, call);
}

template <class S>
int64_t forward_clusters(const AbnProblem& problem, const Geometry& geometry, bool residual) {
  int64_t clusters = 0;
  with_resident_forward<S>(problem, geometry, residual, [&](auto* kernel, const auto&) {
    clusters = active_clusters(resident_shape(geometry), kernel);
  });
  return clusters;
}

template <class S>
void launch_resident_forward(const AbnProblem& problem, const Geometry& geometry,
                             const ApplyArguments<S>& arguments,
                             const StatisticsOutputs<accumulate_t<S>>& outputs, const SlotArguments& slots,
                             Stream stream) {
  with_resident_forward<S>(problem, geometry, arguments.residual, [&](auto* kernel, const auto& activation) {
    launch("abn_forward", with_report(resident_shape(geometry), slots), stream, kernel, geometry.cut,
           arguments, outputs, activation, slots);
  });
}

template <class S>
void launch_backward_reduce(const AbnProblem& problem, const Geometry& geometry,
                            const BackwardArguments<S>& arguments, const Workspace& workspace,
                            Stream stream) {
  with_walk<S, kThreads, kPanelBytes>(problem, geometry.vector, [&]<class Walk>() {
    with_gradient_activation<S, Walk>(problem, arguments.residual,
                                      [&]<class Act, bool kResidual>(const Act& activation) {
                                        launch("abn_backward_reduce", streaming_shape(geometry), stream,
                                               backward_reduce_kernel<S, Walk, Act, kResidual>, geometry.cut,
                                               arguments, activation, workspace);
                                      });
  });
}

template <class S>
void launch_backward_apply(const AbnProblem& problem, const Geometry& geometry,
                           const BackwardArguments<S>& arguments, bool follows, Stream stream) {
  with_walk<S, kThreads, kPanelBytes>(problem, geometry.vector, [&]<class Walk>() {
    with_gradient_activation<S, Walk>(
        problem, arguments.residual, [&]<class Act, bool kResidual>(const Act& activation) {
          launch("abn_backward_apply", following_shape(geometry, follows), stream,
                 backward_apply_kernel<S, Walk, Act, kResidual>, geometry.cut, arguments, activation);
        });
  });
}

/// Calls function(kernel, activation) with the kernel of a resident backward. Only memory-bound cases have
/// one: straight activations in steps of 16 bytes. The arithmetic of the other cases leaves no registers for
/// the loads that this launch has under way, and they gain less.
template <class S, class Function>
void with_resident_backward(const AbnProblem& problem, const Geometry& geometry, bool residual,
                            const Function& function) {
  if constexpr (kLanes<S> > 1) {
    using Straight = StraightActivation<accumulate_t<S>>;
    if (geometry.vector != kLanes<S> || !Straight::covers(problem.activation)) return;
    const auto call = [&]<class Walk>() {
      const Straight activation(problem.activation, {problem.activation_param, precision_of<S>()});
      residual ? function(resident_backward_kernel<S, Walk, Straight, true>, activation)
               : function(resident_backward_kernel<S, Walk, Straight, false>, activation);
    };
    constexpr int V = kLanes<S>;
    geometry.cut.channels > 1    ? call.template operator()<Strips<S, V, kResidentThreads>>()
    : geometry.cut.channels == 1 ? call.template operator()<AlignedPlanes<S, V, kResidentThreads>>()
    : problem.layout == Layout::kNCHW
        ? call.template operator()<Planes<S, V, kResidentThreads>>()
        : call.template operator()<Columns<S, V, kResidentThreads, most_wide<S>(V, kResidentPanelBytes)>>();
  }
}

template <class S>
int64_t backward_clusters(const AbnProblem& problem, const Geometry& geometry, bool residual) {
  int64_t clusters = 0;
  with_resident_backward<S>(problem, geometry, residual, [&](auto* kernel, const auto&) {
    clusters = active_clusters(resident_shape(geometry), kernel);
  });
  return clusters;
}

template <class S>
void launch_resident_backward(const AbnProblem& problem, const Geometry& geometry,
                              const BackwardArguments<S>& arguments, Stream stream) {
  with_resident_backward<S>(problem, geometry, arguments.residual, [&](auto* kernel, const auto& activation) {
    launch("abn_backward", resident_shape(geometry), stream, kernel, geometry.cut, arguments, activation);
  });
}

template <class S>
constexpr LaunchTable<S> kLaunchTable = {.statistics = launch_statistics<S>,
                                         .apply = launch_apply<S>,
                                         .forward_clusters = forward_clusters<S>,
                                         .resident_forward = launch_resident_forward<S>,
                                         .backward_reduce = launch_backward_reduce<S>,
                                         .backward_apply = launch_backward_apply<S>,
                                         .backward_clusters = backward_clusters<S>,
                                         .resident_backward = launch_resident_backward<S>};

}  // namespace palimpsest::kernels::cuda::abn_detail
