"""Compares a converted network with the original: outputs, gradients and buffers, in f64 where the network runs in f64."""
import collections
import contextlib
import copy
import random
import sys
import types

import torch
from torch import nn

from palimpsest import memory
from palimpsest._convert import states
from palimpsest._convert.options import BESIDE_LAYERS

# (share of a tensor's own norm, share of the norm of all) by which it may differ: f64 tells a wrong graph from rounding, and
# a network that needs its own dtype gets its rounding. A tensor is held to its own norm, so that a small one cannot hide
# behind a large one; the second share is for gradients that are 0 but for rounding, as that of a bias before a normalization.
_TOLERANCE = {torch.float64: (1e-6, 1e-10), torch.float32: (2e-2, 5e-6), torch.float16: (0.2, 1e-2),
              torch.bfloat16: (0.2, 5e-2)}

_DIFFERED = "its result or gradient differed from the original's with example_inputs"


def _arguments(example_inputs):
    if isinstance(example_inputs, dict):
        return (), dict(example_inputs)
    return (tuple(example_inputs), {}) if isinstance(example_inputs, (tuple, list)) else ((example_inputs,), {})


def _map(function, value):
    """function on each tensor of nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: _map(function, v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, v) for v in value))
    return type(value)(_map(function, v) for v in value) if isinstance(value, (list, tuple)) else value


def tensors_of(value, within=()):
    """The floating-point tensors in nested lists, tuples, dicts and simple objects, such as the output of a network.

    within: the objects that hold value, which it may refer to."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if any(value is outer for outer in within):
        return []
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    return [t for part in list(parts) for t in tensors_of(part, (*within, value))]


def _table_of(value):
    """The dict, list or set that holds what a value consists of, or None."""
    kind = type(value)  # isinstance() would ask the object
    if issubclass(kind, (dict, list, set, collections.deque)):
        return value
    is_program = str(kind.__module__).partition(".")[0] in states.PACKAGES_OF_THE_PROGRAM
    if is_program and not issubclass(kind, (nn.Module, types.SimpleNamespace)):
        return None
    return states.attributes_of(value)


def _contents(table):
    return [*table, *table.values()] if isinstance(table, dict) else list(table)


class _Unchanged:
    """Gives back all that a step may change: tensors, attributes, lists, dicts, gradients, modes and random numbers.

    It makes no deep copy, so that a network that cannot be copied is compared too."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.tensors, self.tables, self.generators = [], [], []
        self.held = states.held_by(list(self.model.modules()))
        seen, stack = set(), [self.model]
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            kind = type(value)
            if issubclass(kind, torch.Tensor):
                if value.layout is torch.strided and not value.is_meta:
                    grad = value.grad if value.is_leaf else None
                    self.tensors.append((value, value.data, value.detach().clone(), grad))
            elif issubclass(kind, torch.Generator):
                self.generators.append((value, value.get_state()))
            elif issubclass(kind, tuple):
                stack.extend(value)
            elif (table := _table_of(value)) is not None:
                self.tables.append((table, dict(table) if isinstance(table, dict) else list(table)))
                stack.extend(_contents(table))
        self.python_random = random.getstate()
        self.numpy_random = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self.torch_random = torch.random.fork_rng(devices=_cuda_devices(self.model))
        self.torch_random.__enter__()
        _seed(0)

    def __exit__(self, *error):
        for table, before in self.tables:
            if [id(v) for v in _contents(table)] != [id(v) for v in _contents(before)]:
                table.clear()
                (table.extend if isinstance(table, (list, collections.deque)) else table.update)(before)
        for tensor, data, value, grad in self.tensors:
            if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape or tensor.dtype != data.dtype:
                tensor.data = data
            if not torch.equal(data, value):
                data.copy_(value)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad
        for generator, state in self.generators:
            generator.set_state(state)
        states.put_back(self.held)
        self.torch_random.__exit__(*error)
        random.setstate(self.python_random)
        if self.numpy_random is not None:
            sys.modules["numpy"].random.set_state(self.numpy_random)


def _seed(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _cuda_devices(model):
    return sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})


@contextlib.contextmanager
def _ready(model, example_inputs, mode, needs_gradient=torch.is_floating_point):
    """The leaves that a step on example_inputs starts from, with the model in a mode; gives the model back as it was."""
    with torch.inference_mode(False), torch.enable_grad(), _Unchanged(model):
        leaves = _map(lambda t: t.detach().clone().requires_grad_(needs_gradient(t)), _arguments(example_inputs))
        if mode is not None:
            model.train(mode)
        yield leaves


def _call(model, leaves):
    """The outputs on copies of the leaves: a forward may begin in place."""
    arguments, keywords = _map(torch.clone, leaves)
    return tensors_of(model(*arguments, **keywords))


def _modes(model):
    """The modes to prove, first that of a training step. None: each module's own, such as frozen normalizations."""
    is_mixed = len({m.training for m in model.modules()}) > 1
    return [None, True, False] if is_mixed else [True, False]


def _as_given(tensor):
    """What needs a gradient in training: images do not."""
    return tensor.requires_grad


def _step(model, example_inputs, mode, needs_gradient=torch.is_floating_point):
    """(outputs, gradients of parameters, inputs and outputs, buffers) of one step, the same random numbers each time."""
    with _ready(model, example_inputs, mode, needs_gradient) as leaves:
        outputs = _call(model, leaves)
        _seed(1)
        differentiable = [out for out in outputs if out.requires_grad]
        loss = sum((out * torch.randn_like(out)).sum() for out in differentiable)
        inputs = [p for p in model.parameters() if p.requires_grad] + differentiable \
            + [leaf for leaf in tensors_of(list(leaves)) if leaf.requires_grad]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True) if differentiable else [None] * len(inputs)
        gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, gradients)]
        buffers = [b.detach().clone() for b in model.buffers()]
        return [out.detach().clone() for out in outputs], gradients, buffers


def _kept_bytes(model, example_inputs, mode, needs_gradient):
    with _ready(model, example_inputs, mode, needs_gradient) as leaves:
        devices = _cuda_devices(model)
        if devices:
            before = sum(torch.cuda.memory_allocated(d) for d in devices)
            outputs = _call(model, leaves)  # noqa: F841: holds the graph
            return sum(torch.cuda.memory_allocated(d) for d in devices) - before
        with memory.measure() as measured:
            outputs = _call(model, leaves)  # noqa: F841
            measured.forward_done()
        return measured.kept_bytes


def _copy_in_f64(model):
    def parts(m):
        return {id(part) for part in [*m.modules(), *m.parameters(), *m.buffers()]}

    copied = copy.deepcopy(model)
    if parts(model) & parts(copied):
        raise ValueError("a part of the copy is the model's own, which double() would change")
    return copied.double()


def in_words(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


class Proof:
    """What the original gives on example_inputs, to hold the converted network against."""

    def __init__(self, model, example_inputs):
        if any(nn.parameter.is_lazy(t) for t in [*model.parameters(), *model.buffers()]):
            raise ValueError("convert: the model has lazy parameters, which example_inputs would give a shape: call the model "
                             "once before")
        self.model, self.example_inputs = model, example_inputs
        try:
            try:
                self.needs_gradient = _as_given
                self.kept_bytes = self._kept_bytes()
            except Exception:  # noqa: BLE001: a network that differentiates by its inputs
                self.needs_gradient = torch.is_floating_point
                self.kept_bytes = self._kept_bytes()
            try:
                self._hold(_copy_in_f64(model), _map(lambda t: t.double() if t.is_floating_point() else t, example_inputs))
            except Exception:  # noqa: BLE001: a network that fixes its dtype, or cannot be copied, is compared as it is
                self._hold(model, example_inputs)
        except Exception as error:
            raise ValueError(f"convert: the model refuses example_inputs: {in_words(error)}") from error

    def _hold(self, judge, inputs):
        self.judge, self.judge_inputs = judge, inputs
        usual, *others = _modes(judge)
        self.expected = {usual: _step(judge, inputs, usual)}
        for mode in others:
            with contextlib.suppress(Exception):  # a network may want other inputs in evaluation than in training
                self.expected[mode] = _step(judge, inputs, mode)

    def failures(self, converted):
        """(name to reason of the layers without which the converted network equals the original, note or None).

        converted(model, names): a context in which the model is converted with these layers left alone; it gives a report.
        The note says why nothing can be proven, if so."""
        candidates = []

        def problem(left):
            """What is wrong with the network with these layers left alone, or None."""
            with converted(self.judge, left) as report:
                candidates.extend([BESIDE_LAYERS, *report.converted] if not left else [])
                try:
                    same = all(_equal(a, _step(self.judge, self.judge_inputs, mode)) for mode, a in self.expected.items())
                    runs_again = any(layer.runs_again for layer in report.layers)
                    as_given = self._steps_as_given() if same and runs_again else None
                except (MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception as error:  # noqa: BLE001: whatever a layer that is put in the wrong place leads to
                    return f"the network raised with it converted: {in_words(error)}"
            if as_given is not None:  # what runs again does so only where its inputs need no gradient
                same = all(map(_equal, self._steps_as_given(), as_given))
            return None if same else _DIFFERED

        found = problem([])
        if found is None:
            return {}, None
        without = problem(candidates)
        if without is not None:
            return dict.fromkeys(candidates, "nothing can be proven"), \
                f"nothing can be proven, as the model itself does not do the same twice: {without}"
        # Each round finds one layer by halving: those before it can be converted without a problem.
        failed, rest = {}, list(candidates)
        while rest and (found := problem(list(failed))) is not None:
            low, high = 0, len(rest)  # converting rest[:low] is right, rest[:high] is not
            while high - low > 1:
                middle = (low + high) // 2
                found_here = problem([*failed, *rest[middle:]])
                if found_here is not None:
                    high, found = middle, found_here
                else:
                    low = middle
            failed[rest.pop(low)] = found
        return failed, None

    def _steps_as_given(self):
        return [_step(self.judge, self.judge_inputs, mode, _as_given) for mode in self.expected]

    def measure(self, report):
        """Puts the bytes that the model keeps, as it is now, beside those of the original."""
        report.kept_bytes_before = self.kept_bytes
        report.kept_bytes_after = self.kept_bytes
        if report.converted:
            report.kept_bytes_after = self._kept_bytes()

    def _kept_bytes(self):
        return _kept_bytes(self.model, self.example_inputs, _modes(self.model)[0], self.needs_gradient)


def _equal(a, b):
    """Whether two steps gave the same, up to rounding."""
    return all(_equal_tensors(before, after) for before, after in zip(a, b))


def _equal_tensors(before, after):
    if [(x.shape, x.dtype) for x in before] != [(y.shape, y.dtype) for y in after]:
        return False
    pairs = [(x, y) for x, y in zip(before, after) if x.is_floating_point()]
    if not all(torch.equal(x, y) for x, y in zip(before, after) if not x.is_floating_point()) or \
            not all(torch.equal(_not_finite(x), _not_finite(y)) for x, y in pairs):
        return False
    own, of_all = max((_TOLERANCE.get(x.dtype, (0.2, 5e-2)) for x, _ in pairs), default=(0, 0))
    pairs = [(_finite(x), _finite(y)) for x, y in pairs]
    norms = [float(x.norm()) for x, _ in pairs]
    norm_of_all = sum(norm ** 2 for norm in norms) ** 0.5
    return all(float((x - y).norm()) <= own * norm + of_all * norm_of_all + 1e-12 for (x, y), norm in zip(pairs, norms))


def _finite(x):
    return x.double().nan_to_num(0.0, 0.0, 0.0)


def _not_finite(x):
    """0 where x is finite, and 1, 2 and 3 for NaN and the infinities."""
    return x.isnan().byte() + 2 * x.isposinf().byte() + 3 * x.isneginf().byte()
