"""convert() and revert()."""
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from palimpsest import functional
from palimpsest._convert import layers, proof, region, tracing
from palimpsest._convert.report import Report
from palimpsest._convert.rewrite import Layer
from palimpsest.nn import BatchNormAct

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, example_inputs: Any = None, *, strategy: str = "auto",
            module_filter_fn: Callable[[nn.Module, str], bool] | None = None) -> tuple[Model, Report]:
    """Makes the network keep less for backward: the same names, weights and gradients.

        model, report = palimpsest.convert(model, example_inputs)
        print(report)

    The modules stay what they are, with their parameters, buffers, hooks and attributes. In training, and wherever gradients
    are recorded, the forward of the network (or of each part of it whose data flow can be traced) calls fused layers on the
    modules' parameters. Where no gradients are recorded the network's own forward runs.

    example_inputs: a tensor, a tuple of arguments or a dict of keywords. With it the conversion proves itself: outputs,
    gradients and buffers of the converted network equal the original's, and a layer for which they do not is left alone; the
    report has the bytes saved for backward before and after. Needs the time of some steps, and memory for a copy of the
    network in f64.
    strategy: what each layer saves (functional.strategy_names()); "auto" is the one that saves least.
    module_filter_fn(module, name): False leaves a normalization, max pooling or dense block as it is.

    Changes model in place, and returns it with a report. Raises ValueError, with the model as it was, for a model that is
    converted already, compiled by TorchScript, quantized, without a parameter that requires a gradient or on several devices,
    for example_inputs that the model refuses, and for a strategy that an activation of the model does not fit."""
    if strategy not in ("auto", *functional.strategy_names()) or strategy == "standard":
        names = ", ".join(("auto", *(name for name in functional.strategy_names() if name != "standard")))
        raise ValueError(f"convert: strategy must be one of {names}, got '{strategy}'")
    _check(model)
    left = set(_names_refused(model, module_filter_fn))
    before = proof.Before(model, example_inputs) if example_inputs is not None else None
    report = _convert(model, strategy, left)
    if before is None or not report.converted:
        return model, report
    try:
        failed = before.failures(lambda copied, names: _converted(copied, strategy, left | set(names)), report.converted)
        if failed:
            revert(model)
            report = _convert(model, strategy, left | failed.keys(), failed)
        before.measure(model, report)
    except BaseException:
        if any(region.is_region(m) for m in model.modules()):
            revert(model)
        raise
    return model, report


def revert(model: Model) -> Model:
    """The network as it was before convert(), with its weights of now. Raises ValueError if it is not converted."""
    regions = [m for m in model.modules() if region.is_region(m)]
    if not regions:
        raise ValueError("revert: the model is not converted")
    for module in regions:
        module.__class__ = module._palimpsest_class
        del module.__dict__["_palimpsest_settings"]
    return model


def _check(model):
    if not isinstance(model, nn.Module):
        raise ValueError(f"convert needs a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"'{name}'" if name else "the model"
        if region.is_region(module):
            raise ValueError(f"convert: {where} is converted already: call palimpsest.revert first")
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"convert: {where} is compiled by TorchScript, whose forward cannot change: convert before "
                             "scripting, tracing or freezing")
        if ".quantized" in type(module).__module__:
            raise ValueError(f"convert: {where} is quantized ({type(module).__name__}), and has no gradients: convert the "
                             "float model")
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule):
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
        if (layers.is_norm(module) or layers.is_max_pool(module) or layers.is_dense_block(module)) \
                and not module_filter_fn(module, name):
            yield name


def _converted(model, strategy, left):
    _convert(model, strategy, left)
    return model


def _convert(model, strategy, left, failed=None):
    """Makes regions of the largest parts of the model that have a graph."""
    report, made, reasons = [], [], {}

    def visit(module, prefix):
        if region.is_region(module) or layers.is_norm(module):
            return
        try:
            opaque = None if isinstance(module, (nn.ModuleList, nn.ModuleDict)) else tracing.find_opaque(module)
        except tracing.NotTraceable as error:
            opaque = None
            reasons[prefix] = f"the forward of {type(module).__name__} has no graph ({error})"
        if opaque is None:
            for name, child in module.named_children():
                visit(child, f"{prefix}{name}.")
            return
        names = {m: n for n, m in module.named_modules()}
        for child in opaque + [m for m in module.modules() if m is not module and layers.has_hooks(m)]:
            visit(child, f"{prefix}{names[child]}.")
        found = _make_region(module, prefix, strategy, left)
        if found is not None:
            made.append(module)
            report.extend(found)

    try:
        visit(model, "")
    except ValueError as error:
        for module in made:
            module.__class__ = module._palimpsest_class
            del module.__dict__["_palimpsest_settings"]
        raise ValueError(f"convert: {error}") from None
    return _complete(model, report, reasons, left, failed or {})


def _make_region(module, prefix, strategy, left):
    settings = region.Settings(strategy, {name[len(prefix):] for name in left if name.startswith(prefix)})
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


def _complete(model, found, reasons, left, failed):
    """The report: also the layers that no graph has."""
    known = {layer.name for layer in found}
    for layer in found:
        if layer.name in failed:
            layer.how = failed[layer.name]
    for name, module in model.named_modules():
        is_norm = isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm))
        inside = any(layer.converted and layer.kind == "_DenseBlock" and name.startswith(layer.name + ".") for layer in found)
        if name in known or inside or not (is_norm or isinstance(module, nn.MaxPool2d) or layers.is_dense_block(module)):
            continue
        if not (layers.is_norm(module) or layers.is_max_pool(module) or layers.is_dense_block(module)):
            in_place = isinstance(module, BatchNormAct) and module.strategy != "standard"
            reason = "in place already" if in_place else "not a layer that is converted"
        else:
            within = [r for prefix, r in reasons.items() if name.startswith(prefix)]
            reason = "not selected" if name in left else within[-1] if within else "forward does not call it"
        found.append(Layer(name, type(module).__name__, False, reason))
    order = {name: i for i, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    report = Report(sorted(found, key=lambda layer: order.get(layer.name, 0)))
    if not report.converted:
        report.notes.append("nothing was converted, and the model is what it was")
    return report
