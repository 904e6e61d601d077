#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Activation checkpointing: a segment of a network keeps its inputs only, and backward runs it again for the
/// rest. Between forward and backward a recomputed segment holds its inputs (which whoever made them keeps
/// anyway, as a rule) and its outputs; the price is one more forward pass of the segment. A chain of n equal
/// layers cut into sqrt(n) segments needs memory for about 2 sqrt(n) layers instead of n.
///
///   torch::nn::Sequential block(conv1, bn, relu, conv2);
///   x = memory::recompute(block, x, memory::RecomputeOptions{.buffers = block->buffers()});
///
/// Gradients are those of the plain run to the last bit, wherever libtorch's kernels give the same bits
/// twice: the first run records the graph as ever (its nodes, a few hundred bytes each) but no tensors, so
/// gradients meet, are added up and reach parameters in the very order of the plain run. When backward first
/// asks for a tensor that is not there, the segment is run again on its inputs, and what the second run saves
/// takes the place of what the first one did not; each such tensor leaves memory when its operation is done,
/// as ever. As no backward pass runs within another (PyTorch calls this form non-reentrant),
///  - `fn` may use parameters and other tensors beyond its inputs; all get their gradients, also where no
///    input requires one;
///  - hooks on tensors, on parameters and on their accumulation run once a backward pass, in the plain order,
///    so that the reducer of data parallelism works;
///  - retain_graph (each pass runs the segment again), torch::autograd::grad for any tensors, second
///    derivatives (where the layers within have one) and outputs that nobody uses all work;
///  - segments nest to any depth: backward runs the outer one again for the inputs of the inner one, so that
///    what is inside is computed once more for each level around it.
/// Nothing is kept and nothing run again where no gradient is wanted: under no_grad, in inference mode, or
/// where neither inputs nor parameters require one.
///
/// What the second run finds as the first one did:
///  - the default random generators of the CPU and of the inputs' devices, so that dropout draws the same
///    numbers; they are put back afterwards. The state, 5 kB, is kept only if the first run drew a number;
///  - autocast: on or off, its dtype, its cache;
///  - running statistics: the layers of ops and nn know a second run by recomputing() and leave theirs
///    alone; those of libtorch's own BatchNorm are to be listed in RecomputeOptions::buffers.
///
/// What `fn` must be:
///  - a function of its inputs and of parameters: the same operations on the same values both times. It is
///    kept, with its captures, as long as the graph; capture modules by value (they are shared pointers),
///    never a local variable by reference;
///  - without writes over its inputs, which the second run needs. A layer in place must not come first in a
///    segment (InPlaceABNOptions::in_place(false) there); in place further in is fine;
///  - without effects that must not happen twice, other than those above.
/// Tensors that a custom autograd Function keeps otherwise than by save_for_backward stay in memory.
///
/// Errors, as palimpsest::Error. In forward: an input that `fn` wrote over, or that was made in inference
/// mode. In backward: an input, or a parameter that the segment uses, changed in place since the first run
/// (by an optimizer's step, say); a second run whose outputs or saved tensors differ from the first one's in
/// number, shape, dtype or device. Not noticed: a changed tensor that is captured and no parameter (a mask:
/// pass it as an input), a module switched between train and eval where that saves tensors of the same
/// shapes. An exception out of the second run of `fn` passes through backward, with generators, autocast,
/// buffers and recomputing() put back.
///
/// Threads: backward may run on another thread than forward. A segment that draws random numbers must not be
/// run again while other threads draw from the same default generator.
///
/// Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
namespace palimpsest::memory {

struct RecomputeOptions {
  /// Tensors that `fn` changes in place once for every batch: running_mean, running_var and
  /// num_batches_tracked of libtorch's BatchNorm. The second run changes them too, and they then get back the
  /// values from before it. `module->buffers()` is a good list. Nested segments each list their own.
  std::vector<at::Tensor> buffers = {};
  /// Replay the random generators. false: for a segment known to draw nothing, or where other draws do no
  /// harm.
  bool replay_random_numbers = true;
};

/// The form behind recompute(): a list of tensors to a list of tensors; undefined ones may be among them.
std::vector<at::Tensor> recompute_list(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn,
    const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {});

namespace detail {

template <class T>
inline constexpr bool is_list = std::is_same_v<std::decay_t<T>, std::vector<at::Tensor>>;

/// fn(inputs...), or for a module holder or a pointer to a module fn->forward(inputs...): libtorch's holders
/// have an operator() too, but that of Sequential returns nothing.
template <class Fn, class... Inputs>
auto run(Fn& fn, const Inputs&... inputs) {
  if constexpr (requires { fn->forward(inputs...); }) {
    return fn->forward(inputs...);
  } else {
    return fn(inputs...);
  }
}

/// `call` takes the list of inputs and gives one tensor, or anything that becomes one, or a list.
template <class Call>
auto recompute_call(Call call, const std::vector<at::Tensor>& inputs, const RecomputeOptions& options) {
  using Result = std::invoke_result_t<Call&, const std::vector<at::Tensor>&>;
  static_assert(is_list<Result> || std::is_convertible_v<Result, at::Tensor>,
                "recompute: fn must return a tensor or a std::vector of tensors");
  if constexpr (is_list<Result>) {
    return recompute_list(std::move(call), inputs, options);
  } else {
    auto outputs = recompute_list(
        [call = std::move(call)](const std::vector<at::Tensor>& x) mutable {
          return std::vector<at::Tensor>{call(x)};
        },
        inputs, options);
    return outputs[0];
  }
}

}  // namespace detail

/// recompute(fn, input..., options): runs fn(input...) and returns what it returns, a tensor or a std::vector
/// of tensors, keeping as little as the top of this file says.
///
/// fn:       anything that can be called with the inputs (constant references to tensors): a lambda, a
///           function, a module holder (torch::nn::Sequential, every other TORCH_MODULE), a shared pointer to
///           a module. It is copied; copies of holders and pointers share the module.
/// input...: tensors, each handed to fn; or one std::vector of tensors, handed over as such.
/// options:  a RecomputeOptions, the last argument; may be left out.
template <class Fn, class... Arguments>
auto recompute(Fn fn, const Arguments&... arguments) {
  static_assert(sizeof...(Arguments) > 0, "recompute: needs an input");
  constexpr std::size_t last = sizeof...(Arguments) - 1;
  using Types = std::tuple<Arguments...>;
  const std::tuple<const Arguments&...> all(arguments...);
  if constexpr (!std::is_same_v<std::tuple_element_t<last, Types>, RecomputeOptions>) {
    return recompute(std::move(fn), arguments..., RecomputeOptions{});
  } else if constexpr (last == 1 && detail::is_list<std::tuple_element_t<0, Types>>) {
    return detail::recompute_call(
        [fn = std::move(fn)](const std::vector<at::Tensor>& x) mutable { return detail::run(fn, x); },
        std::get<0>(all), std::get<last>(all));
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      static_assert((std::is_convertible_v<std::tuple_element_t<I, Types>, at::Tensor> && ...),
                    "recompute: inputs must be tensors, the options come last");
      return detail::recompute_call(
          [fn = std::move(fn)](const std::vector<at::Tensor>& x) mutable { return detail::run(fn, x[I]...); },
          std::vector<at::Tensor>{std::get<I>(all)...}, std::get<last>(all));
    }(std::make_index_sequence<last>{});
  }
}

}  // namespace palimpsest::memory
