"""A module of a converted network that runs its rewritten graph in training, and its own forward otherwise."""
import functools
import inspect
import sys
import warnings

import torch
from torch.nn.modules import module as torchs_module

from palimpsest import _checkpoint, functional
from palimpsest._convert import custom_activations, tracing
from palimpsest._convert import watch as watching
from palimpsest._convert.options import Options
from palimpsest._convert.rewrite import rewrite

_MOST_PLANS = 16  # of one region: a plan takes the time of some steps to make, and a kilobyte per node of the graph
_FEW_PLANS = 4    # with more, modules whose attributes keep changing are called: their attributes need no other plan
_classes = {}     # a module's class to the class that it has as a region


class Settings:
    """What a region keeps beside its module's own attributes."""

    def __init__(self, strategy, left, warn=True, activations=None):
        self.strategy = strategy
        self.activations = activations or {}  #: classes of modules that compute an activation: custom_activations.checked()
        self.left = frozenset(left)  #: names of layers, relative to the region, that stay as they are
        self.warn = warn
        self.plans = {}              #: (kinds of inputs, signature) to function; the one that was used last is the last
        self.compiled = {}           #: (training, number of inputs) to (function, conditions), for torch.compile
        self.converted = 0           #: layers in the plan that convert() made
        self.read = set()            #: names of attributes that a plan may depend on
        self.read_of_called = set()  #: (path, name) of attributes of modules that a plan calls, if it may depend on them
        self.called = {True: set(), False: set()}  #: root's training to paths of modules that plans call and do not enter
        self.watch = None            #: watching.Watch of the region as it was in the last forward

    def __setstate__(self, state):
        self.__init__(None, ())  # what an older version has not stored
        self.__dict__.update(state)

    def __getstate__(self):
        return {**self.__dict__, "plans": {}, "compiled": {}, "watch": None}

    def __deepcopy__(self, memo):
        copied = Settings(self.strategy, self.left, self.warn, self.activations)
        copied.plans, copied.compiled, copied.converted = dict(self.plans), dict(self.compiled), self.converted
        copied.read, copied.read_of_called = set(self.read), set(self.read_of_called)
        copied.called = {training: set(paths) for training, paths in self.called.items()}
        return copied


def _forward_of(original):
    """The forward of a region: the plan that fits the call, with the signature of the module's own forward."""

    @functools.wraps(original.forward)
    def forward(self, *arguments, **keywords):
        if torch.compiler.is_compiling():
            if torch.is_grad_enabled() and not functional.is_exporting() and not keywords and _are_tensors(arguments):
                plan, planned = self._palimpsest_settings.compiled.get((self.training, len(arguments)), (None, ()))
                if plan is not None and not _somebody_listens() and watching.is_as_planned(self, planned):
                    return plan(self, *arguments)
            return self._palimpsest_class.forward(self, *arguments, **keywords)
        if not torch.is_grad_enabled() or _needs_own_forward() or _somebody_listens():
            return self._palimpsest_class.forward(self, *arguments, **keywords)
        return _plan_of(self, arguments, keywords)(self, *arguments, **keywords)

    return forward


def _needs_own_forward():
    """Transforms that our operators have no rules for, and tracers that want torch's operators."""
    return (torch._C._functorch.maybe_current_level() is not None or torch.jit.is_tracing() or functional.is_exporting()
            or torch.autograd.forward_ad._current_level >= 0 or torch.fx._symbolic_trace.is_fx_symbolic_tracing())


def _are_tensors(arguments):
    for argument in arguments:
        if not isinstance(argument, torch.Tensor):
            return False
    return True


def _somebody_listens():
    """Whether there are hooks on the calls of all modules, other than those with which checkpoint() runs a part again."""
    return bool(torchs_module._global_forward_hooks or torchs_module._global_forward_pre_hooks
                or torchs_module._global_backward_hooks or torchs_module._global_backward_pre_hooks) and any(
        hook not in (_checkpoint.before_forward, _checkpoint.behind_forward)
        for hooks in (torchs_module._global_forward_hooks, torchs_module._global_forward_pre_hooks,
                      torchs_module._global_backward_hooks, torchs_module._global_backward_pre_hooks)
        for hook in hooks.values())


def _new(original):
    kind = region_class(original)
    return kind.__new__(kind)


@functools.lru_cache(maxsize=None)
def _metaclass(meta):
    class Metaclass(meta):
        def __call__(cls, *arguments, **keywords):
            if "_palimpsest_class" in cls.__dict__:  # a part of a converted nn.Sequential, say, is an ordinary one
                return cls._palimpsest_class(*arguments, **keywords)
            return super().__call__(*arguments, **keywords)

    return Metaclass


def region_class(original):
    """The subclass of a module's class that runs plans. It has its name, so that what prints a network prints the same.

    It has no other base: an object may take another class only if both have the same layout. Raises what a class raises that
    allows no subclasses."""
    if original in _classes and _classes[original].__dict__[tracing.FORWARD] is original.forward:
        return _classes[original]

    def reduce_ex(self, protocol):
        _, _, *state = original.__reduce_ex__(self, protocol)
        return _new, (original,), *state

    def setstate(self, state):
        original.__setstate__(self, state)
        if not self._palimpsest_settings.plans:
            make_usual_plans(self)

    body = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
            "__reduce_ex__": reduce_ex, "__setstate__": setstate, "forward": _forward_of(original),
            "_palimpsest_class": original, tracing.FORWARD: original.forward}
    _classes[original] = _metaclass(type(original))(original.__name__, (original,), body)
    return _classes[original]


def is_region(module):
    return hasattr(type(module), "_palimpsest_class")


def _plan_of(region, arguments, keywords):
    watch = region._palimpsest_settings.watch
    if watch is None or watch.root is not region or not watch.holds():
        watch = _watch(region)
    kinds = tracing.call_key(arguments, keywords)
    return watch.plans.get(kinds) or _plan_for(region, watch, kinds, arguments, keywords)


def _watch(region):
    settings = region._palimpsest_settings
    if type(region)._palimpsest_forward is not region._palimpsest_class.forward:  # somebody replaced the class's
        type(region)._palimpsest_forward = region._palimpsest_class.forward
    watch = watching.Watch(region, settings.read, settings.called[region.training], settings.read_of_called)
    if not hasattr(region, "_is_replica"):  # a replica of data parallelism lives for one forward
        settings.watch = watch
    return watch


def _plan_for(region, watch, kinds, arguments, keywords):
    """The plan for a signature that is not that of the last forward, or for other inputs."""
    settings = region._palimpsest_settings
    with tracing.lock:
        plan = settings.plans.pop((kinds, watch.signature), None)
        if plan is None:
            if hasattr(region, "_is_replica"):
                return type(region)._palimpsest_forward
            _make_room(settings, region.training)
            plan = _later_plan(region, arguments, keywords)
            watch = _watch(region)  # the plan may depend on more than those before it
        settings.plans[kinds, watch.signature] = plan
        if len(watch.plans) >= _MOST_PLANS:
            watch.plans.clear()
        watch.plans[kinds] = plan
    return plan


def _make_room(settings, training):
    """Before one more plan: sees to it that attributes that keep changing do not need one each."""
    if len(settings.plans) >= _FEW_PLANS:
        paths = watching.changing(signature for _, signature in settings.plans) - settings.called[training]
        if paths:
            settings.called[training] |= paths
            settings.plans.clear()
    if len(settings.plans) >= _MOST_PLANS:
        del settings.plans[next(iter(settings.plans))]
        if settings.warn:
            settings.warn = False
            _warn(f"the network is called in more than {_MOST_PLANS} ways, or attributes that its forward reads keep changing: "
                  "each time its graph is made anew, which takes time")


def _later_plan(region, arguments, keywords):
    """A plan for a network that changed since it was converted, or that is called in another way."""
    settings = region._palimpsest_settings
    plan, layers = make_plan(region, settings, constants_of(region, arguments, keywords))
    converted = sum(layer.converted for layer in layers)
    if converted < settings.converted and settings.warn:
        _warn(f"{region._palimpsest_class.__name__} was changed, or is called in another way, since it was converted: "
              f"{converted} of its layers are converted now, {settings.converted} were; the others take as much memory as "
              "before convert()")
    return plan


def _warn(message):
    """A warning at the line that called the network: the first above torch's code and ours."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "palimpsest"):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"palimpsest: {message}", RuntimeWarning, stacklevel=level)


def constants_of(region, arguments, keywords):
    """The inputs of a call that are no tensors, by name, with the defaults of those that are not given."""
    forward = getattr(region, tracing.FORWARD, region.forward)
    bound = inspect.signature(forward).bind(*arguments, **keywords)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if type(value) in tracing.CONSTANTS}


def make_plan(module, settings, constants):
    """(function, layers): the forward of a module with fused layers, or its own if it has no graph."""
    options = Options(settings.strategy, lambda _, name: name not in settings.left, settings.activations)
    own = type(module)._palimpsest_forward if is_region(module) else type(module).forward
    modules = dict(module.named_modules(remove_duplicate=False))
    called = settings.called[module.training]
    with watching.recorded_reads(settings.read):
        try:
            opaque = tracing.find_opaque(module, constants, [modules[path] for path in called if path in modules]
                                         + custom_activations.modules_of(module, settings.activations))
            with watching.reads_of_forwards() as reads:
                graph = tracing.trace(module, opaque, constants)
        except tracing.NotTraceable:
            return own, []
        settings.read_of_called |= watching.of_called(graph, modules, reads)
        settings.read_of_called |= custom_activations.attributes_of(modules, settings.activations)
        called.update(path for path, part in modules.items() if part in opaque)
        layers = rewrite(graph, modules, options)
    if not any(layer.converted for layer in layers):
        return own, layers
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    try:
        exec(compile(code.src, f"<palimpsest: {type(module).__name__}.forward>", "exec"), namespace)
    except (SyntaxError, NameError):  # a constant whose repr() is no code
        return own, []
    return namespace["forward"], layers


def make_usual_plans(region):
    """Plans for training and evaluation, called with tensors alone. Returns the layers of the one for its mode now."""
    settings = region._palimpsest_settings
    inputs, constants = tracing.usual_call(region)
    modes = {m: m.training for m in region.modules()}
    made = {}

    def in_each_mode(function):
        for training in (not region.training, region.training):
            try:
                if training != region.training:
                    for m in modes:
                        m.training = training
                function(training)
            finally:
                for m, was in modes.items():
                    m.training = was

    def make(training):
        made[training] = make_plan(region, settings, constants)

    def keep(training):  # after both are made, when it is known what they depend on
        plan = made[training][0]
        called = settings.called[training]
        depends = settings.read, called, settings.read_of_called
        settings.plans[tuple([None] * inputs), watching.Watch(region, *depends).signature] = plan
        settings.compiled[training, inputs] = plan, watching.plan_conditions(region, *depends)

    in_each_mode(make)
    in_each_mode(keep)
    return made[region.training][1]
