#!/usr/bin/env python3
"""Compares whole training steps, as a user would take them, of torchvision's networks: forward, cross entropy, backward and SGD
with momentum, in f32 and channels-last.

Claim:     a converted network takes no more time than torch.compile's step, and at most 0.62 of its memory.
Opponents: torch.compile of the whole network. Controls, which claim nothing: eager PyTorch, whose activations are in place;
           checkpoints around each block (DenseNet-121: torchvision's memory_efficient=True, too); torch.compile with these
           checkpoints, and with a memory budget of one half; the converted network under torch.compile.
Limits:    1.00 of torch.compile's time, and 0.62 of its peak above the state, in each network.

All forms of a network share its parameters and buffers and run in one process on the same threads, with a malloc that retains
freed blocks. Bytes are those of tensors, as palimpsest.memory.measure sees them: those that forward keeps for backward
("kept"); the most that lives at a time ("whole"); and "peak": the whole less the state, which is parameters, buffers,
gradients and momentum. Before the timing, the gradients of every form are compared with those of the network in f64: the
norm of the difference, relative ("error"), may be 0.02, or twice that of eager PyTorch in f32 if this is more. A control
of PyTorch's with wrong gradients is not timed: its row has the error alone.

Programs are compiled, which takes minutes, before a network's timing begins. With --while PATH a round of timed steps, one of
each form, begins only while PATH exists: so only the rounds need a quiet machine.

Exit status: 0 done; 1 a gradient of ours or of torch.compile is wrong, the JSON file cannot be written, or, with --check, a measured claim fails; 2 a wrong
option or folder, or torchvision is not installed.
"""
import copy
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support import Report, Row, begin_with_retaining_malloc, exactly, interleave, megabytes, milliseconds_of
from training_step import NetworkOptions, Training, converted, gate, torchvisions

OPPONENT = "torch.compile"
CLAIMED = "ours"
TIME, PEAK = 1.00, 0.62
BUDGET = 0.5
# Of all gradients, relative to f64's; more where eager's own error is more than half of it. Deep networks at their first
# weights amplify rounding: ResNet-50 has errors of 0.02 to 0.05.
LARGEST_ERROR = 0.02
LARGEST_OF_EAGER = 0.1  # above, the network in f64 has computed something else


class Checkpointed(nn.Module):
    """A block that saves its inputs alone."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        # A copy of the list of features, which grows until backward.
        return checkpoint(self.block, list(x) if isinstance(x, list) else x, use_reentrant=False)


def with_checkpoints(model):
    """The network with every residual block, or layer of a dense block, under a checkpoint."""
    from torchvision.models import densenet, efficientnet, resnet
    blocks = (resnet.BasicBlock, resnet.Bottleneck, efficientnet.MBConv, densenet._DenseLayer)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, blocks):
                module.add_module(name, Checkpointed(child))
    return model


def with_torchvisions_checkpoints(model):
    """A DenseNet as torchvision.models.densenet121(memory_efficient=True) makes it; None: another network."""
    layers = [m for m in model.modules() if hasattr(m, "memory_efficient")]
    for layer in layers:
        layer.memory_efficient = True
    return model if layers else None


def compiled(model):
    return torch.compile(model, fullgraph=True, dynamic=False)  # for exactly this size, which is the fastest


def compiled_with_budget(model):
    """The network compiled to keep about BUDGET of the bytes that torch.compile keeps; backward computes the rest again."""
    def inductor(graph, inputs):
        # Of its own, or torch.compile would take the program of the network without a budget.
        with torch._functorch.config.patch(activation_memory_budget=BUDGET):
            return torch._inductor.compile(graph, inputs)
    return torch.compile(model, backend=inductor, fullgraph=True, dynamic=False)


# What runs in place of a network, or None if the network has no such form.
FORMS = {
    "eager": lambda model: model,
    "torch.compile": compiled,
    "checkpoint": with_checkpoints,
    "memory_efficient": with_torchvisions_checkpoints,
    "torch.compile + checkpoint": lambda model: compiled(with_checkpoints(model)),
    f"torch.compile, budget {BUDGET}": compiled_with_budget,
    "ours": converted,
    "ours + torch.compile": lambda model: compiled(converted(model)),
}


NETWORKS = {name: torchvisions(name) for name in ("resnet50", "efficientnet_b0", "densenet121")}


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


class Forms(Training):
    """A training whose network has several forms, which share the parameters and buffers."""

    def copy(self):
        """A copy of the network that shares its parameters and buffers."""
        return copy.deepcopy(self.model, {id(t): t for t in [*self.parameters, *self.model.buffers()]})

    def gradients(self, network):
        """All gradients as one vector, the same random numbers for every form."""
        torch.manual_seed(0)
        self.optimizer.zero_grad()
        self.loss(network).backward()
        return torch.cat([p.grad.flatten() for p in self.parameters])

    def gradients_in_f64(self):
        network = copy.deepcopy(self.model).double()
        torch.manual_seed(0)
        nn.functional.cross_entropy(network(self.x.double()), self.y).backward()
        return torch.cat([p.grad.flatten() for p in network.parameters()])

    def state_bytes(self):
        """Parameters, buffers, gradients and momentum, after a step; and the gradients alone."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        gradients = bytes_of(p.grad for p in self.parameters)
        return bytes_of([*self.parameters, *self.model.buffers(), *momentum]) + gradients, gradients

    def measured_bytes(self, network):
        """{"kept", "peak", "whole"} of one step."""
        from palimpsest import memory

        self.step(network)  # makes what later steps use again
        state, gradients = self.state_bytes()
        self.optimizer.zero_grad()
        with memory.measure() as measured:
            loss = self.loss(network)
            measured.forward_done()
            loss.backward()
            self.optimizer.step()
        whole = state - gradients + measured.peak_bytes
        return {"kept": measured.kept_bytes, "peak": whole - state, "whole": whole}


def prepare(name, training, forms):
    """Compiles and verifies the forms. Returns {form: network} and {form: bytes}, without the controls whose gradients are
    wrong, and {form: error} of all.

    Raises ArithmeticError if the gradients of torch.compile or of ours are wrong."""
    networks, errors = {}, {}
    truth = training.gradients_in_f64()

    def error_of(network):
        return ((training.gradients(network).double() - truth).norm() / truth.norm()).item()

    of_eager = error_of(training.model)
    if not of_eager <= LARGEST_OF_EAGER:
        raise ArithmeticError(f"{name}: eager's gradients differ from those in f64 by {of_eager:.1e}, at most "
                              f"{LARGEST_OF_EAGER} is allowed")
    largest = max(LARGEST_ERROR, 2 * of_eager)
    for form in forms:
        network = FORMS[form](training.copy())
        if network is None:
            continue
        start = time.perf_counter()
        error = errors[form] = error_of(network)
        if not error <= largest:
            wrong = (f"{name}: the gradients of '{form}' differ from those in f64 by {error:.1e}, at most {largest:.1e} is "
                     "allowed")
            if form == OPPONENT or "ours" in form:
                raise ArithmeticError(wrong)
            print(f"{wrong}: it is not timed", flush=True)
            continue
        networks[form] = network
        print(f"{name}, {form}: ready after {time.perf_counter() - start:.0f} s, gradients within {error:.0e}", flush=True)
    # Last: to count bytes takes steps, which change the parameters for all forms.
    return networks, errors, {form: training.measured_bytes(network) for form, network in networks.items()}


def measure(name, training, options, report):
    """Adds a row per form for the time, the peak, the other bytes and the error, each beside torch.compile's."""
    networks, errors, counts = prepare(name, training, options.forms)
    sides = [lambda network=network: milliseconds_of(lambda: training.step(network)) for network in networks.values()]
    times = dict(zip(networks, interleave(sides, options.repeats, warm_up=1, before_round=gate(options.gate, name))))
    for form, error in errors.items():
        report.add(Row(f"{name} error: {form}", OPPONENT, "of f64's", exactly(errors[OPPONENT]), exactly(error)))
    for form in networks:
        limits = {"step": TIME, "peak": PEAK} if form == CLAIMED else {}
        report.add(Row(f"{name} step: {form}", OPPONENT, opponent=times[OPPONENT], measured=times[form], limit=limits.get("step")))
        for what in ("peak", "whole", "kept"):
            report.add(Row(f"{name} {what}: {form}", OPPONENT, "MB", megabytes(counts[OPPONENT][what]),
                           megabytes(counts[form][what]), limits.get(what)))


def read_options():
    parser = NetworkOptions("Compares whole training steps of networks: eager, compiled, with checkpoints, and converted.",
                            NETWORKS, repeats=7)
    parser.add_argument("--forms", metavar="NAME;...", help=f"some of {'; '.join(FORMS)} [all]; {OPPONENT} is always one")
    options = parser.read()
    wanted = parser.choice("--forms", options.forms, FORMS, ";")
    options.forms = [form for form in FORMS if form in wanted or form == OPPONENT]
    return options


def main():
    begin_with_retaining_malloc()
    options = read_options()
    # Compiled programs then draw the random numbers of eager PyTorch, and their gradients can be compared.
    torch._inductor.config.fallback_random = True
    report = Report("whole_step", options, batch=options.batch, size=options.size)
    try:
        for name in options.networks:
            torch.manual_seed(0)
            torch.compiler.reset()
            measure(name, Forms(NETWORKS[name](), options.batch, options.size), options, report)
    except ArithmeticError as error:
        print(f"whole_step: {error}", file=sys.stderr)
        return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
