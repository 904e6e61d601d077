"""Compares a converted network with the original: outputs, gradients and buffers, in f64 where the network runs in f64."""
import copy

import torch

from palimpsest import memory

# Of the norm of what is compared. f64 tells a wrong graph from rounding; a network that needs its own dtype gets its rounding.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-2, torch.float16: 0.2, torch.bfloat16: 0.2}


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


def tensors_of(value):
    """The floating-point tensors in nested lists, tuples, dicts and simple objects, such as the output of a network."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        value = vars(value).values() if hasattr(value, "__dict__") else ()
    return [t for part in value for t in tensors_of(part)]


class _Unchanged:
    """Gives buffers, modes, gradients and random numbers back."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        self.modes = [(m, m.training) for m in self.model.modules()]
        self.grads = [(p, p.grad) for p in self.model.parameters()]
        self.random = torch.random.fork_rng(devices=_cuda_devices(self.model))
        self.random.__enter__()
        torch.manual_seed(0)

    def __exit__(self, *error):
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
        for module, mode in self.modes:
            module.training = mode
        for parameter, grad in self.grads:
            parameter.grad = grad
        self.random.__exit__(*error)


def _cuda_devices(model):
    return sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})


def _step(model, example_inputs, training, mark=None):
    """(outputs, gradients of parameters and inputs, buffers) of one step, the same random numbers each time."""
    arguments, keywords = _map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), _arguments(example_inputs))
    with _Unchanged(model), torch.enable_grad():
        model.train(training)
        outputs = tensors_of(model(*arguments, **keywords))
        outputs = [out for out in outputs if out.requires_grad] or outputs
        if mark:
            mark()
        torch.manual_seed(1)
        loss = sum((out * torch.randn_like(out)).sum() for out in outputs)
        leaves = [p for p in model.parameters() if p.requires_grad] + \
            [t for t in tensors_of([arguments, keywords]) if t.requires_grad]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        buffers = [b.detach().clone() for b in model.buffers() if b.is_floating_point()]
    return [out.detach() for out in outputs], [g for g in gradients if g is not None], buffers


def _kept_bytes(model, example_inputs):
    devices = _cuda_devices(model)
    if devices:
        def now():
            return sum(torch.cuda.memory_allocated(d) for d in devices)

        before, after = now(), []
        _step(model, example_inputs, True, lambda: after.append(now()))
        return after[0] - before
    with memory.measure() as measured:
        _step(model, example_inputs, True, measured.forward_done)
    return measured.kept_bytes


class Before:
    """What the original gives on example_inputs, to hold the converted network against."""

    def __init__(self, model, example_inputs):
        self.inputs = example_inputs
        self.model = model
        try:
            self.kept_bytes = _kept_bytes(model, example_inputs)
        except Exception as error:
            problem = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"convert: the model refuses example_inputs: {problem}") from error
        self.judge, self.judge_inputs = self._in_f64()
        self.expected = [_step(self.judge, self.judge_inputs, training) for training in (False, True)]

    def _in_f64(self):
        """A copy in f64, or the model itself if it does not run in f64."""
        try:
            judge = copy.deepcopy(self.model).double()
            inputs = _map(lambda t: t.double() if t.is_floating_point() else t, self.inputs)
            _step(judge, inputs, True)
            return judge, inputs
        except Exception:  # noqa: BLE001: a network that fixes its dtype, or cannot be copied, is compared as it is
            return copy.copy(self.model), self.inputs

    def failures(self, convert_again, candidates):
        """Name to reason of the layers without which the converted network equals the original.

        convert_again(model, names): converts a copy with these layers left alone."""
        failed = []

        def differs(left):
            model = convert_again(copy.deepcopy(self.judge), left)
            return any(_differ(a, _step(model, self.judge_inputs, t)) for a, t in zip(self.expected, (False, True)))

        if not differs([]):
            return {}
        # Each round finds one layer by halving: those before it can be converted without a difference.
        rest = list(candidates)
        while rest and differs(failed):
            low, high = 0, len(rest)  # converting rest[:low] is right, rest[:high] is not
            while high - low > 1:
                middle = (low + high) // 2
                if differs(failed + rest[middle:]):
                    high = middle
                else:
                    low = middle
            failed.append(rest.pop(low))
        return dict.fromkeys(failed, "its result or gradient differed from the original's with example_inputs")

    def measure(self, model, report):
        report.kept_bytes_before = self.kept_bytes
        report.kept_bytes_after = _kept_bytes(model, self.inputs)


def _differ(a, b):
    for before, after in zip(a, b):
        if len(before) != len(after) or any(x.shape != y.shape for x, y in zip(before, after)):
            return True
        if not before:
            continue
        tolerance = max(_TOLERANCE.get(t.dtype, 0.2) for t in before)
        difference = sum((x.double() - y.double()).square().sum() for x, y in zip(before, after)).sqrt()
        size = sum(x.double().square().sum() for x in before).sqrt()
        if not bool(difference <= tolerance * size + 1e-12):
            return not (bool(size.isnan()) and bool(difference.isnan()))
    return False
