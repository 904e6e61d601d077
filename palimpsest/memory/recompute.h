#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Activation checkpointing: a segment of a network saves only its inputs for backward, and backward runs the
/// segment again for all other tensors. The price is one more forward pass of the segment. A chain of n equal
/// layers that is cut into sqrt(n) segments needs memory for about 2 sqrt(n) layers instead of n.
///
///   torch::nn::Sequential block(conv1, bn, relu, conv2);
///   x = memory::recompute(block, x, {.buffers = block->buffers()});
///
/// Gradients are those of the plain run to the last bit, wherever libtorch's kernels give the same bits
/// twice. The first run records the graph (nodes of a few hundred bytes each) but no tensors, so gradients
/// are added up and reach parameters in the order of the plain run. When backward first needs a saved tensor,
/// the segment runs again on its inputs, and the tensors that the second run saves replace the missing
/// tensors. Each tensor is freed when its operation is done, as in the plain run. No backward pass runs
/// within another (PyTorch calls this form non-reentrant), so
///  - `fn` may use parameters and other tensors beside its inputs. All get their gradients, even if no input
///    requires one;
///  - hooks on tensors, on parameters and on their accumulation run once per backward pass, in the plain
///    order: the reducer of data parallelism works;
///  - retain_graph (each pass runs the segment again), torch::autograd::grad for any tensors, double backward
///    (if the layers within support it) and unused outputs work;
///  - segments nest to any depth. Backward runs the outer segment again for the inputs of the inner one, so
///    an operation is computed once more per level around it.
/// If no gradient is wanted, nothing is saved and nothing runs again: under no_grad, in inference mode, or if
/// neither inputs nor parameters require a gradient.
///
/// The second run has the same ambient state as the first:
///  - the default random generators of the CPU and of the inputs' devices, so dropout draws the same numbers.
///    They are restored afterwards. Their state, 5 kB, is saved only if the first run drew a number;
///  - autocast: enabled, dtype, cache, compute_in_f32;
///  - statistics over a process group (ops::AbnOptions::group): the second run takes those of the first, and
///    waits for no other rank. They stay in memory, 3 numbers per channel;
///  - running statistics: the layers of ops and nn leave theirs as they are in a second run (recomputing()).
///    Those of libtorch's own BatchNorm must be listed in RecomputeOptions::buffers.
///
/// Requirements of `fn`:
///  - It is a function of its inputs and of parameters: both runs do the same operations on the same values.
///    It lives, with its captures, as long as the graph. Capture modules by value (they are shared pointers),
///    never a local variable by reference.
///  - It does not write over its inputs, which the second run needs. An in-place layer must not come first in
///    a segment (use InPlaceABNOptions::in_place(false) there); later in the segment it may.
///  - It has no effects that must not happen twice, other than those above.
/// Tensors that a custom autograd Function holds without save_for_backward stay in memory.
///
/// Errors are palimpsest::Error(kUsage). In forward: `fn` wrote over an input, or an input was made in
/// inference mode. In backward: an input or a parameter of the segment was changed in place since the first
/// run (by an optimizer's step, for example), or the outputs or saved tensors of the second run differ from
/// those of the first in number, shape, dtype or device. Two faults are not noticed: a change of a captured
/// tensor that is no parameter (pass a mask as an input), and a switch of a module between train and eval if
/// both modes save tensors of the same shapes. An exception of the second run passes through backward;
/// generators, autocast, buffers and recomputing() are restored.
///
/// Threads: backward may run on another thread than forward. `fn` computes on its own thread: a parameter that it
/// uses on others alone is not checked for changes. While a segment that draws random numbers runs
/// again, no other thread may draw from the same default generator. On a GPU `fn` must not differentiate with
/// create_graph: libtorch runs that pass on a thread of its own in the first run only, and backward reports that the
/// saved tensors differ.
///
/// Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
namespace palimpsest::memory {

struct RecomputeOptions {
  /// Tensors that `fn` changes in place once per batch: running_mean, running_var and num_batches_tracked of
  /// libtorch's BatchNorm; usually `module->buffers()`. The second run changes them too; afterwards they get
  /// back the values from before the second run. Each nested segment lists its own buffers.
  std::vector<at::Tensor> buffers = {};
  /// Gives the second run the random numbers of the first. false: `fn` draws none, or they need not agree.
  bool replay_random_numbers = true;
};

/// The function behind recompute(): maps a list of tensors to a list of tensors. Both may hold undefined
/// tensors.
std::vector<at::Tensor> recompute_list(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn,
    const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {});

namespace detail {

using Tensors = std::vector<at::Tensor>;
template <class Input>
using TensorFor = at::Tensor;

/// A module holder or a pointer to a module. (libtorch's holders have an operator() too, but that of
/// Sequential returns nothing.)
template <class Fn, class... Inputs>
concept HoldsModule = requires(Fn& fn, const Inputs&... inputs) { fn->forward(inputs...); };

template <class Fn, class... Inputs>
concept TakesInputs =
    std::copy_constructible<Fn> &&
    (HoldsModule<Fn, Inputs...> || requires(Fn& fn, const Inputs&... inputs) { fn(inputs...); });

template <class Fn, class... Inputs>
auto run(Fn& fn, const Inputs&... inputs) {
  if constexpr (HoldsModule<Fn, Inputs...>) {
    return fn->forward(inputs...);
  } else {
    return fn(inputs...);
  }
}

/// Returns fn(list[0], list[1], ...), or fn(list) if the list is the one input of fn.
template <class... Inputs, class Fn>
auto run_on_list(Fn& fn, const Tensors& list) {
  if constexpr (std::is_same_v<std::tuple<Inputs...>, std::tuple<Tensors>>) {
    return run(fn, list);
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return run(fn, list[I]...);
    }(std::index_sequence_for<Inputs...>());
  }
}

/// `Inputs` are the types that `Fn` must take. A wrong `Fn` gives one error, which states the requirement.
template <class... Inputs, class Fn>
auto recompute_call(const Fn& fn, const Tensors& inputs, const RecomputeOptions& options) {
  using Copy = std::decay_t<const Fn&>;
  constexpr bool takes_inputs = TakesInputs<Copy, Inputs...>;
  static_assert(takes_inputs,
                "recompute: fn must be copyable and callable with the inputs: a function, a lambda, a module "
                "holder or a std::shared_ptr to a module, but not the module itself (*holder)");
  if constexpr (takes_inputs) {
    using Result = decltype(run(std::declval<Copy&>(), std::declval<const Inputs&>()...));
    constexpr bool is_list = std::is_same_v<Result, Tensors>;
    constexpr bool is_tensor_or_list = is_list || std::is_convertible_v<Result, at::Tensor>;
    static_assert(
        is_tensor_or_list,
        "recompute: fn must return a tensor or a std::vector of tensors; call a module that returns "
        "a tuple (an LSTM or a GRU) in a lambda");
    if constexpr (is_list) {
      return recompute_list([fn = fn](const Tensors& x) mutable { return run_on_list<Inputs...>(fn, x); },
                            inputs, options);
    } else if constexpr (is_tensor_or_list) {
      return recompute_list(
          [fn = fn](const Tensors& x) mutable { return Tensors{run_on_list<Inputs...>(fn, x)}; }, inputs,
          options)[0];
    } else {
      return at::Tensor();
    }
  } else {
    return at::Tensor();
  }
}

template <class Fn, class... Inputs>
auto recompute_tensors(const Fn& fn, const RecomputeOptions& options, const Inputs&... inputs) {
  constexpr bool are_tensors = sizeof...(Inputs) > 0 && (std::is_convertible_v<Inputs, at::Tensor> && ...);
  static_assert(
      are_tensors,
      "recompute: needs fn, then tensors or one std::vector of tensors, then the options; more than "
      "three tensors with options must be a std::vector");
  if constexpr (are_tensors) {
    return recompute_call<TensorFor<Inputs>...>(fn, Tensors{inputs...}, options);
  } else {
    return at::Tensor();
  }
}

}  // namespace detail

/// Runs fn(input...) as a segment and returns its result, a tensor or a std::vector of tensors, with the
/// memory and the guarantees that the top of this file describes.
///
/// fn:       a function, a lambda, a module holder (torch::nn::Sequential, every other TORCH_MODULE) or a
///           shared pointer to a module. It takes the inputs as constant references. It is copied; copies of
///           holders and pointers share the module.
/// input...: tensors, each passed to fn; or one std::vector of tensors, passed as such.
/// options:  {.buffers = ..., .replay_random_numbers = ...}, after one to three tensors or after the vector;
///           more tensors with options must be a vector.
template <class Fn>
auto recompute(const Fn& fn, const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {}) {
  return detail::recompute_call<detail::Tensors>(fn, inputs, options);
}
template <class Fn, class... Inputs>
auto recompute(const Fn& fn, const Inputs&... inputs) {
  return detail::recompute_tensors(fn, RecomputeOptions{}, inputs...);
}
template <class Fn, class Input>
auto recompute(const Fn& fn, const Input& input, const RecomputeOptions& options) {
  return detail::recompute_tensors(fn, options, input);
}
template <class Fn, class First, class Second>
auto recompute(const Fn& fn, const First& first, const Second& second, const RecomputeOptions& options) {
  return detail::recompute_tensors(fn, options, first, second);
}
template <class Fn, class First, class Second, class Third>
auto recompute(const Fn& fn, const First& first, const Second& second, const Third& third,
               const RecomputeOptions& options) {
  return detail::recompute_tensors(fn, options, first, second, third);
}

}  // namespace palimpsest::memory
