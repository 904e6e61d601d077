#!/usr/bin/env python3
"""Says where the time of a training step goes, by operator, for torchvision's networks and for the same networks after
palimpsest.convert: forward, cross entropy, backward and SGD with momentum, in f32 and channels-last.

Claim: what belongs to no operator is at most 0.05 of a step; the pieces and this rest add up to the step.

torch.profiler records whole steps of both sides in turn, and of each side the fastest step counts: other work on the machine
only adds to a step. The time of an
operator is its own, without that of the operators that it calls. An operator of ours that does several things counts as one
piece, with the name of its convolution if it has one: PIECES says which.

Backward of a convolution has two pieces. The steps of a second profile have convolutions whose weights require no gradient: what
their backward takes is the input gradient, and what it takes more in the first profile is the weight gradient.

--while PATH: see whole_step.py. Exit status: 0 done; 1 the JSON file cannot be written, or, with --check, the claim fails; 2 a
wrong option or folder, or torchvision is not installed.
"""
import copy
import dataclasses
import gc
import re
import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from support import begin_with_retaining_malloc, finish, machine, milliseconds_of, spread_of
from training_step import NetworkOptions, Training, converted, gate, torchvisions

NETWORKS = {name: torchvisions(name) for name in ("resnet50", "resnext50_32x4d", "densenet121", "efficientnet_b0")}
LARGEST_REST = 0.05

FORWARD, INPUT, WEIGHT = "convolution, forward", "convolution, input gradient", "convolution, weight gradient"
BACKWARD = "convolution, backward"  # until it is split into the two gradients
NORMALIZATION = "normalization and activation"
POOLING, ADDITION, PRODUCTS = "pooling and means", "addition", "gates, stochastic depth, dropout"
CONCATENATION, LOSS, OPTIMIZER = "concatenation", "classifier and loss", "optimizer"
COPIES, OTHER, REST = "copies, fills and layout", "other operators", "between operators"
PIECES = (FORWARD, INPUT, WEIGHT, NORMALIZATION, POOLING, ADDITION, PRODUCTS, CONCATENATION, LOSS, OPTIMIZER, COPIES, OTHER, REST)

STEP = "palimpsest.step"
_NODE = "(autograd::engine::evaluate_function: )?"
_OURS = r"palimpsest::(ops::)?"
_WITH_CONVOLUTION = r"(convolution|parallel_convolutions|abn_conv|activate_conv|concat_abn_conv|squeeze_excite_conv|dense_block)"
# The first pattern that a name matches decides. An operator without one belongs to the piece of the operator that calls it.
# All that the optimizer calls is the optimizer's.
PATTERNS = [(re.compile(pattern), piece) for pattern, piece in (
    (r"Optimizer\.", OPTIMIZER),
    (rf"{_NODE}(Add|Sub)Backward", ADDITION),
    (rf"{_NODE}(Mul|Bernoulli|Div)Backward", PRODUCTS),
    (rf"{_NODE}(Mean|\w*Pool\w*)Backward", POOLING),
    (rf"{_NODE}(Cat|Slice|Narrow)Backward", CONCATENATION),
    (rf"{_NODE}(Addmm|T|NllLoss|LogSoftmax)Backward", LOSS),
    (rf"torch::autograd::CppNode<{_OURS}{_WITH_CONVOLUTION}_detail", BACKWARD),
    (rf"{_OURS}{_WITH_CONVOLUTION}_?$", FORWARD),
    (rf"(torch::autograd::CppNode<)?{_OURS}(abn|inv_std|activat)", NORMALIZATION),
    (rf"(torch::autograd::CppNode<)?{_OURS}(max_pool|spatial_mean)", POOLING),
    (r"aten::(copy_|clone|contiguous|to|_to_copy|fill_|zero_|zeros|zeros_like|ones|empty|empty_like|empty_strided|resize_)$", COPIES),
    (r"aten::(convolution|mkldnn_convolution|thnn_conv2d)\w*_backward$", BACKWARD),
    (r"aten::(_?convolution|conv2d|mkldnn_convolution|thnn_conv2d|_slow_conv2d_forward)$", FORWARD),
    (r"aten::(_?native_batch_norm|batch_norm|_batch_norm_impl_index|cudnn_batch_norm)", NORMALIZATION),
    (r"aten::(relu|clamp_min|threshold|silu|sigmoid|hardswish|hardsigmoid|hardtanh|relu6)", NORMALIZATION),
    (r"aten::(max_pool|avg_pool|adaptive_avg_pool|mean)", POOLING),
    (r"aten::(add|add_|sub|sub_)$", ADDITION),
    (r"aten::(mul|mul_|bernoulli|bernoulli_|dropout|native_dropout|div_)", PRODUCTS),
    (r"aten::(cat|narrow|slice|slice_backward)$", CONCATENATION),
    (r"aten::(linear|addmm|mm|cross_entropy_loss|_?log_softmax|nll_loss)", LOSS),
    (rf"{STEP}$|autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$", REST),
)]


def piece_of(name):
    """The piece of an operator's own time, or None if its caller decides."""
    return next((piece for pattern, piece in PATTERNS if pattern.match(name)), None)


def pieces_of(events):
    """{piece: ms of its operators, without what they call}, of the events of one profiled step. Their sum is the step."""
    pieces = dict.fromkeys((*PIECES, BACKWARD), 0.0)
    pieces.pop(INPUT), pieces.pop(WEIGHT)
    of_event = {}

    def piece(event):
        if event.id not in of_event:
            outer = piece(event.cpu_parent) if event.cpu_parent else None
            own = piece_of(event.name)
            if outer == OPTIMIZER:
                own = OPTIMIZER
            # An operator that no pattern knows, and that the step itself calls, is not what lies between operators.
            of_event[event.id] = own or (OTHER if outer in (None, REST) else outer)
        return of_event[event.id]

    def within(event):
        return event.name == STEP or (event.cpu_parent is not None and within(event.cpu_parent))

    for event in events:
        if within(event):
            pieces[piece(event)] += 1e-3 * event.self_cpu_time_total
    return pieces


def profiled(step):
    """The pieces of one step."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        with record_function(STEP):
            step()
    return pieces_of(recorded.events())


def fastest(steps):
    """The step of least time, which other work on the machine disturbed least. The sum of its pieces is its time."""
    return min(steps, key=lambda pieces: sum(pieces.values()))


def split(whole, without_weights):
    """The pieces of a step whose backward of convolutions is split into the two gradients."""
    backward = whole[BACKWARD]
    to_input = min(without_weights[BACKWARD], backward)
    found = {**whole, INPUT: to_input, WEIGHT: backward - to_input}
    return {piece: found[piece] for piece in PIECES}


@dataclasses.dataclass
class Side:
    """A network whose steps are profiled, and the training that it takes part in."""
    training: Training
    network: nn.Module

    def step(self):
        self.training.step(self.network)

    def require_weights(self, required):
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.requires_grad_(required)


def measure(name, options):
    """{side: {"step": ms, "without_profiler": ms with quartiles, "pieces": {piece: ms}}}"""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    sides = {}
    for side, make in (("eager", lambda model: model), ("ours", converted)):
        training = Training(copy.deepcopy(model), options.batch, options.size)
        sides[side] = Side(training, make(training.model))
    recorded = {(key, weights): [] for key in sides for weights in (True, False)}
    plain = {key: [] for key in sides}
    wait = gate(options.gate, name)
    for weights in (True, False):
        for side in sides.values():
            side.require_weights(weights)
            side.training.optimizer.zero_grad()
            side.step()  # of another graph
        for _ in range(options.repeats):
            gc.collect()
            wait()
            for key, side in sides.items():
                recorded[key, weights].append(profiled(side.step))
                if weights:
                    plain[key].append(milliseconds_of(side.step))
    found = {}
    for key, times in plain.items():
        pieces = split(*(fastest(recorded[key, weights]) for weights in (True, False)))
        found[key] = {"step": sum(pieces.values()), "without_profiler": dataclasses.asdict(spread_of(times)), "pieces": pieces}
    return found


def text_of(name, found):
    eager, ours = (side["pieces"] for side in found.values())
    lines = [f"{name + ', ms':<40} {'eager':>9} {'ours':>9}"]
    lines += [f"  {piece:<38} {eager[piece]:9.1f} {ours[piece]:9.1f}" for piece in PIECES]
    lines += [f"  {what:<38} " + " ".join(f"{value:9.1f}" for value in values) for what, values in
              (("the step", [side["step"] for side in found.values()]),
               ("without the profiler", [side["without_profiler"]["median"] for side in found.values()]))]
    return "\n".join(lines)


def holds(found):
    return all(side["pieces"][OTHER] + side["pieces"][REST] <= LARGEST_REST * side["step"] for side in found.values())


def main():
    begin_with_retaining_malloc()
    options = NetworkOptions("Says where the time of a training step goes, eager and converted.", NETWORKS, repeats=5).read()
    networks = {}
    for name in options.networks:
        networks[name] = measure(name, options)
        print(text_of(name, networks[name]), flush=True)
    passed = all(holds(found) for found in networks.values())
    print(f"step_profile: {'at most' if passed else 'MORE than'} {LARGEST_REST:.0%} of a step belongs to no piece")
    return finish({"benchmark": "step_profile", **machine(), "repeats": options.repeats, "batch": options.batch, "size": options.size,
                   "rest": [OTHER, REST], "limit": LARGEST_REST, "networks": networks, "pass": passed}, options)


if __name__ == "__main__":
    sys.exit(main())
