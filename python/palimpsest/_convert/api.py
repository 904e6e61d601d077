"""convert() and revert()."""
import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from palimpsest._convert import custom_activations, layers, proof, region, tracing
from palimpsest._convert.options import BESIDE_LAYERS, THE_REST, strategy_names
from palimpsest._convert.report import Layer, Report
from palimpsest.nn import BatchNormAct

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, example_inputs: Any = None, *, strategy: str = "auto",
            module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
            activations: dict[type[nn.Module], str | tuple[str, float]] | None = None) -> tuple[Model, Report]:
    """Makes the network keep less for backward: the same names, weights and gradients.

        model, report = palimpsest.convert(model, example_inputs)
        print(report)

    The modules stay what they are, with their parameters, buffers, hooks and attributes. In training, and wherever gradients
    are recorded, the forward of the network (or of each part of it whose data flow can be traced) calls fused layers on the
    modules' parameters. Where no gradients are recorded the network's own forward runs.

    example_inputs: a tensor, a tuple of arguments or a dict of keywords. With it the conversion proves itself: outputs,
    gradients and buffers of the converted network equal the original's, in training, in evaluation and in the model's own
    modes if they are mixed, and a layer for which they do not is left alone; the report has the bytes saved for backward
    before and after. Needs the time of some steps, and memory for two copies of the network in f64.
    strategy: what each layer saves (functional.strategy_names() but "standard"); "auto" is the one that saves least.
    module_filter_fn(module, name): False leaves a normalization, max pooling or dense block as it is. With it, parts of the
    network without such a layer stay as they are, too.
    activations: classes of the model's modules that compute an activation in their own way, and its name: {Swish: "silu"},
    {Slope: ("leaky_relu", 0.2)}. What a copy of such a module gives for numbers from -8 to 8 is compared with it.

    A module that another model shares computes the same there, with less kept; convert() of that model leaves it alone.

    Changes model in place, and returns it with a report. Raises ValueError, with the model as it was, for a model that is
    converted already, compiled by TorchScript, quantized, without a parameter that requires a gradient or on several devices,
    for example_inputs that the model refuses, for a strategy that an activation of the model does not fit, and for activations
    that the model does not have or that compute something else."""
    if strategy not in strategy_names():
        raise ValueError(f"convert: strategy must be one of {', '.join(strategy_names())}, got '{strategy}'")
    if module_filter_fn is not None and not callable(module_filter_fn):
        raise ValueError(f"convert: module_filter_fn must be a function, got {type(module_filter_fn).__name__}")
    _check(model)
    left = set(_names_refused(model, module_filter_fn)) | ({THE_REST} if module_filter_fn else set())
    activations = custom_activations.checked(activations, model)
    if example_inputs is None:
        report, made = _convert(model, strategy, activations, left)
    else:
        report, made = _convert_proven(model, strategy, activations, left, proof.Proof(model, example_inputs))
    if any(_is_of_another(m, model) for m in model.modules()):
        model.__dict__[_SHARES] = True
    if not made:
        _unchanged[id(model)] = model
    return model, report


def revert(model: Model) -> Model:
    """The network as it was before convert(), with its weights of now. Raises ValueError if convert() was not called."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"revert needs a torch.nn.Module, got {type(model).__name__}")
    regions = [m for m in model.modules() if region.is_region(m) and not _is_of_another(m, model)]
    if not regions and _SHARES not in model.__dict__ and _unchanged.get(id(model)) is not model:
        raise ValueError("revert: the model is not converted")
    _undo(regions)
    _unchanged.pop(id(model), None)
    model.__dict__.pop(_SHARES, None)
    return model


_THROUGH = "_palimpsest_through"  # of a region: the model that it was converted with
_SHARES = "_palimpsest_shares"    # of a model: parts of it were converted with another model before it
_unchanged = weakref.WeakValueDictionary()  # by id, models in which convert() converted nothing: revert() has nothing to do


class _Through:
    """A weak reference to the model that a region was converted with; in a copy of that model, to the copy."""

    def __init__(self, model=None):
        self.model = weakref.ref(model) if model is not None else lambda: None

    def __deepcopy__(self, memo):
        model = self.model()
        return _Through(memo.get(id(model), model))

    def __reduce__(self):  # a file holds the region, not the model
        return _Through, ()


def _is_of_another(module, model):
    """Whether a module is a region that was converted with a model that is neither around `model` nor in it."""
    through = module.__dict__[_THROUGH].model() if _THROUGH in module.__dict__ else None
    return through is not None and not any(m is model for m in through.modules()) \
        and not any(m is through for m in model.modules())


def _undo(regions):
    for module in regions:
        module.__class__ = module._palimpsest_class
        for name in ("_palimpsest_settings", _THROUGH):
            module.__dict__.pop(name, None)


def _check(model):
    if not isinstance(model, nn.Module):
        raise ValueError(f"convert needs a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"'{name}'" if name else "the model"
        if region.is_region(module) and not _is_of_another(module, model):
            raise ValueError(f"convert: {where} is converted already: call palimpsest.revert first")
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"convert: {where} is compiled by TorchScript, whose forward cannot change: convert before "
                             "scripting, tracing or freezing")
        if ".quantized" in type(module).__module__:
            raise ValueError(f"convert: {where} is quantized ({type(module).__name__}), and has no gradients: convert the "
                             "float model")
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
            raise ValueError(f"convert: {where} is compiled: convert before torch.compile")
    parameters = list(model.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        raise ValueError("convert: no parameter of the model requires a gradient, so nothing is saved for backward: call "
                         "model.requires_grad_(True) first")
    devices = sorted({str(t.device) for t in [*parameters, *model.buffers()]})
    if len(devices) > 1:
        raise ValueError(f"convert: the model must be on one device, got {', '.join(devices)}")


def _names_refused(model, module_filter_fn):
    if module_filter_fn is None:
        return
    for name, module in model.named_modules(remove_duplicate=False):
        if layers.may_be_converted(module) and not module_filter_fn(module, name):
            yield name


def _convert_proven(model, strategy, activations, left, proven):
    """_convert() of what can be proven."""
    @contextlib.contextmanager
    def converted(judge, names):
        report, made = _convert(judge, strategy, activations, left | set(names))
        try:
            yield report
        finally:
            _undo(made)

    failed, note = proven.failures(converted)
    report, made = _convert(model, strategy, activations, left | failed.keys(), failed)
    try:
        proven.measure(report)
    except BaseException as error:
        _undo(made)
        if not isinstance(error, Exception):
            raise
        # Right in f64, it raises in the model's own dtype.
        note = f"the converted network raises with example_inputs: {proof.in_words(error)}"
        failed |= dict.fromkeys([BESIDE_LAYERS, *report.converted], "the network raises with the layers converted")
        report, made = _convert(model, strategy, activations, left | failed.keys(), failed)
        proven.measure(report)
    if BESIDE_LAYERS in failed and not note:
        note = f"beside the layers nothing is converted: {failed[BESIDE_LAYERS]}"
    report.notes.extend([note] if note else [])
    return report, made


def _convert(model, strategy, activations, left, failed=None):
    """Makes regions of the largest parts of the model that have a graph. Returns a report and the regions."""
    report, made, reasons = [], [], {}
    earlier = [name for name, m in model.named_modules() if region.is_region(m)]

    def visit(module, prefix):
        if region.is_region(module) or layers.is_norm(module) or isinstance(module, layers.NORMS_OF_SAMPLES):
            return
        try:
            if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
                raise tracing.NotTraceable
            called = custom_activations.modules_of(module, activations)
            opaque = tracing.find_opaque(module, called=called)
            if prefix and tracing.optional_inputs(module):  # its parent passes them or not: both calls need a graph
                tracing.find_opaque(module, {}, called)
            _check_class(module)
        except tracing.NotTraceable as error:
            if str(error):
                reasons[prefix] = f"the forward of {type(module).__name__} has no graph ({error})"
            for name, child in module.named_children():
                visit(child, f"{prefix}{name}.")
            return
        names = {m: n for n, m in module.named_modules()}
        for child in opaque + [m for m in module.modules() if m is not module and layers.has_hooks(m)]:
            visit(child, f"{prefix}{names[child]}.")
        found = _make_region(module, prefix, strategy, activations, left)
        report.extend(found)
        if region.is_region(module):
            made.append(module)
            module.__dict__[_THROUGH] = _Through(model)

    try:
        visit(model, "")
        return _complete(model, report, reasons, left, failed or {}, earlier), made
    except BaseException as error:
        _undo(made)
        if isinstance(error, ValueError):
            raise ValueError(f"convert: {error}") from None
        raise


def _check_class(module):
    """Raises NotTraceable for a class of which no object can be a region: one that keeps a register of subclasses, say."""
    original = type(module)
    try:
        module.__class__ = region.region_class(original)
        module.__class__ = original
    except Exception as error:  # noqa: BLE001: whatever the class of a stranger raises
        raise tracing.NotTraceable(f"its class takes no subclass: {proof.in_words(error)}") from None


def _make_region(module, prefix, strategy, activations, left):
    within = {name[len(prefix):] for name in left if name.startswith(prefix)}
    settings = region.Settings(strategy, within | (left & {THE_REST, BESIDE_LAYERS}), activations=activations)
    original = type(module)
    module.__class__ = region.region_class(original)
    module.__dict__["_palimpsest_settings"] = settings
    try:
        found = region.make_usual_plans(module)
        settings.converted = sum(layer.converted for layer in found)
    finally:
        if not settings.converted:
            module.__class__ = original
            del module.__dict__["_palimpsest_settings"]
    for layer in found:
        layer.name = prefix + layer.name
    return found


def _complete(model, found, reasons, left, failed, earlier):
    """The report: also the layers that no graph has. earlier: the names of regions that another model shares."""
    known = {layer.name for layer in found}
    for layer in found:
        if layer.name in failed:
            layer.how = failed[layer.name]
    for name, module in model.named_modules():
        is_norm = isinstance(module, (nn.modules.batchnorm._NormBase, *layers.NORMS_OF_SAMPLES))
        inside = any(layer.converted and layer.kind == "_DenseBlock" and name.startswith(layer.name + ".") for layer in found)
        if name in known or inside or not (is_norm or isinstance(module, nn.MaxPool2d) or layers.is_dense_block(module)):
            continue
        if any(name == region_name or name.startswith(region_name + ".") for region_name in earlier):
            reason = "converted already, with another model"
        elif not layers.may_be_converted(module):
            in_place = isinstance(module, BatchNormAct) and module.strategy != "standard"
            reason = "in place already" if in_place else "not a layer that is converted"
        else:
            within = [r for prefix, r in reasons.items() if name.startswith(prefix)]
            is_own = layers.is_instance_norm(module) and not layers.is_norm_of_samples(module)
            reason = "not selected" if name in left else within[-1] if within else \
                "a class of its own" if is_own else "forward does not call it"
        found.append(Layer(name, type(module).__name__, False, reason))
    order = {name: i for i, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    report = Report(sorted(found, key=lambda layer: order.get(layer.name.removesuffix(THE_REST).removesuffix("."), 0)))
    if not report.converted:
        report.notes.append("nothing was converted, and the model is what it was")
    return report
