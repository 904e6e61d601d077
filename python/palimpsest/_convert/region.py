"""A module of a converted network that runs its rewritten graph in training, and its own forward otherwise."""
import functools
import inspect
import warnings

import torch

from palimpsest import functional
from palimpsest._convert import tracing
from palimpsest._convert.rewrite import Options, rewrite

_MOST_PLANS = 16  # of one region: a model that is called with ever new numbers runs its own forward
_classes = {}     # a module's class to the class that it has as a region


class Settings:
    """What a region keeps beside its module's own attributes."""

    def __init__(self, strategy, left, warn=True):
        self.strategy = strategy
        self.left = frozenset(left)  #: names of layers, relative to the region, that stay as they are
        self.warn = warn
        self.plans = {}              #: key to function
        self.compiled = {}           #: (training, number of inputs) to (function, conditions), for torch.compile
        self.converted = 0           #: layers in the plan that convert() made

    def __getstate__(self):
        return {**self.__dict__, "plans": {}, "compiled": {}}

    def __deepcopy__(self, memo):
        copied = Settings(self.strategy, self.left, self.warn)
        copied.plans, copied.compiled, copied.converted = dict(self.plans), dict(self.compiled), self.converted
        return copied


def _forward_of(original):
    """The forward of a region: the plan that fits the call, with the signature of the module's own forward."""

    @functools.wraps(original.forward)
    def forward(self, *arguments, **keywords):
        if torch.compiler.is_compiling():
            if not functional.is_exporting():
                plan, planned = self._palimpsest_settings.compiled.get((self.training, len(arguments)), (None, ()))
                if plan is not None and not keywords and tracing.is_as_planned(self, planned):
                    return plan(self, *arguments)
            return self._palimpsest_forward(*arguments, **keywords)
        if not torch.is_grad_enabled() or _needs_own_forward():
            return self._palimpsest_forward(*arguments, **keywords)
        return _plan_of(self, arguments, keywords)(self, *arguments, **keywords)

    return forward


class _Region:
    """In front of the class of a module that runs plans."""

    def __reduce_ex__(self, protocol):
        _, _, *state = super().__reduce_ex__(protocol)
        return _new, (self._palimpsest_class,), *state

    def __setstate__(self, state):
        super().__setstate__(state)
        if not self._palimpsest_settings.plans:
            make_usual_plans(self)


def _needs_own_forward():
    """Transforms that our operators have no rules for, and tracers that want torch's operators."""
    return (torch._C._functorch.maybe_current_level() is not None or torch.jit.is_tracing() or functional.is_exporting()
            or torch.autograd.forward_ad._current_level >= 0)


def _new(original):
    return region_class(original).__new__(region_class(original))


def region_class(original):
    """The subclass of a module's class that runs plans. It has its name, so that what prints a network prints the same."""
    if original not in _classes:
        body = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
                "forward": _forward_of(original), "_palimpsest_class": original, tracing.FORWARD: original.forward}
        _classes[original] = type(original.__name__, (_Region, original), body)
    return _classes[original]


def is_region(module):
    return isinstance(module, _Region)


def _plan_of(region, arguments, keywords):
    settings = region._palimpsest_settings
    key = (tracing.call_key(arguments, keywords), tracing.signature(region))
    plan = settings.plans.get(key)
    if plan is None:
        if hasattr(region, "_is_replica") or len(settings.plans) >= _MOST_PLANS:
            return type(region)._palimpsest_forward
        plan = settings.plans[key] = _later_plan(region, arguments, keywords)
    return plan


def _later_plan(region, arguments, keywords):
    """A plan for a network that changed since it was converted, or that is called in another way."""
    plan, layers = make_plan(region, region._palimpsest_settings, constants_of(region, arguments, keywords))
    converted = sum(layer.converted for layer in layers)
    settings = region._palimpsest_settings
    if converted < settings.converted and settings.warn:
        warnings.warn(f"palimpsest: {region._palimpsest_class.__name__} was changed, or is called in another way, since it was "
                      f"converted: {converted} of its layers are converted now, {settings.converted} were; the others take "
                      "as much memory as before convert()", RuntimeWarning, stacklevel=5)
    return plan


def constants_of(region, arguments, keywords):
    """The inputs of a call that are no tensors, by name, with the defaults of those that are not given."""
    forward = getattr(region, tracing.FORWARD, region.forward)
    bound = inspect.signature(forward).bind(*arguments, **keywords)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if type(value) in tracing._CONSTANTS}


def make_plan(module, settings, constants):
    """(function, layers): the forward of a module with fused layers, or its own if it has no graph."""
    options = Options(settings.strategy, lambda _, name: name not in settings.left)
    own = type(module)._palimpsest_forward if is_region(module) else type(module).forward
    try:
        graph = tracing.trace(module, tracing.find_opaque(module, constants), constants)
    except tracing.NotTraceable:
        return own, []
    layers = rewrite(graph, dict(module.named_modules(remove_duplicate=False)), options)
    if not any(layer.converted for layer in layers):
        return own, layers
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(compile(code.src, f"<palimpsest: {type(module).__name__}.forward>", "exec"), namespace)
    return namespace["forward"], layers


def make_usual_plans(region):
    """Plans for training and evaluation, called with tensors alone. Returns the layers of the one for its mode now."""
    settings = region._palimpsest_settings
    inputs, constants = tracing.usual_call(region)
    modes = {m: m.training for m in region.modules()}
    found = []
    for training in (not region.training, region.training):
        if training != region.training:
            for m in modes:
                m.training = training
        try:
            plan, layers = make_plan(region, settings, constants)
            key = (tuple([None] * inputs), tracing.signature(region))
            planned = tracing.plan_conditions(region)
        finally:
            for m, was in modes.items():
                m.training = was
        settings.plans[key] = plan
        settings.compiled[training, inputs] = plan, planned
        found = layers
    return found
