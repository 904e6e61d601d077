"""Modules of the caller's that compute an activation we know: convert(activations={Swish: "silu"})."""
import copy

import torch
from torch import nn

from palimpsest._convert import layers, proof, states

# By how much a value or a derivative may differ. In f64, too, some modules compute in f32.
_CLOSE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def checked(activations, model):
    """{class: (name, parameter or None)} of what the caller gave. Raises ValueError for a class that the model does not have,
    an unknown name, and a module that computes something else."""
    if activations is None:
        return {}
    if not isinstance(activations, dict):
        raise ValueError(f"convert: activations must be a dict of a module's class to an activation's name, got "
                         f"{type(activations).__name__}")
    known = {}
    for kind, given in activations.items():
        name, param = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, None)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(f"convert: a key of activations must be a class of modules, got {kind!r}")
        if not isinstance(name, str) or name not in layers.FUNCTIONS:
            raise ValueError(f"convert: activations[{kind.__name__}] must be one of {', '.join(layers.FUNCTIONS)}, got {name!r}")
        if param is not None and (layers.FUNCTIONS[name][1] is None or layers.checked(name, param) is None):
            raise ValueError(f"convert: activations[{kind.__name__}]: {name} takes no parameter {param!r}")
        modules = [(path, m) for path, m in model.named_modules() if type(m) is kind]
        if not modules:
            raise ValueError(f"convert: activations names {kind.__name__}, but no module of the model is of this class")
        known[kind] = name, param
        dtypes = {torch.float64, *(p.dtype for p in model.parameters() if p.dtype in _CLOSE)}
        for path, module in modules:
            problem = _problem(module, name, param, dtypes)
            if problem:
                raise ValueError(f"convert: activations says that {kind.__name__} computes {name}, but '{path}' {problem}")
    return known


def _problem(module, name, param, dtypes=(torch.float64,)):
    """In words, what a module does that the activation does not; None if it does the same."""
    if any(True for _ in module.parameters()):
        return "has parameters of its own, which no activation has"
    try:
        module = copy.deepcopy(module)  # a call may change its state
        for training in (True, False):
            module.train(training)
            for dtype in sorted(dtypes, key=str):
                problem = _problem_in(module, name, param, dtype)
                if problem:
                    return problem
    except Exception as error:  # noqa: BLE001: whatever the module of a stranger raises
        return f"raises for numbers from -8 to 8: {proof.in_words(error)}"
    return None


def _problem_in(module, name, param, dtype):
    # No integer: there some derivatives jump.
    where = torch.linspace(-7.9, 7.9, 400, dtype=torch.float64).view(1, 1, 20, 20).to(_device_of(module), dtype)
    results = []
    for function in (module.forward, lambda x: _call(x, name, param)):
        leaf = where.clone().requires_grad_()
        with torch.inference_mode(False), torch.enable_grad():
            x = leaf * 1
            y = function(x)
            if not torch.equal(x, where):
                return "writes over its input, which other layers may read"
            results.append((y.detach(), torch.autograd.grad(y.sum(), leaf)[0]))
    for got, want, of in zip(*results, ("", "the derivative of ")):
        if got.shape != want.shape:
            return f"makes {tuple(got.shape)} of a tensor of {tuple(want.shape)}"
        if got.dtype != want.dtype:
            return f"makes {got.dtype} of {want.dtype}"
        difference = (got.double() - want.double()).abs().nan_to_num(nan=torch.inf)
        if difference.max() > _CLOSE[dtype]:
            at = difference.argmax()
            return f"differs: {of}{name}({where.flatten()[at]:.4g}) is {want.flatten()[at]:.6g}, and it gives " \
                f"{got.flatten()[at]:.6g}"
    return None


def _device_of(module):
    return next((b.device for b in module.buffers()), torch.device("cpu"))


def _arguments(name, param):
    if name == "gelu_tanh":
        return {"approximate": "tanh"}
    return {} if param is None else {layers.FUNCTIONS[name][1]: param}


def _call(x, name, param):
    return layers.FUNCTIONS[name][0](x, **_arguments(name, param))


def modules_of(module, activations):
    """The modules within `module` that a graph must call, and not enter."""
    return [m for m in module.modules() if type(m) in activations and m is not module] if activations else []


def attributes_of(modules, activations):
    """(path, name) of the attributes of such modules: what a module computes may depend on them."""
    return {(path, name) for path, module in modules.items() if type(module) in activations
            for name in vars(module).keys() - states.OF_EVERY_MODULE}


def put_functions(graph, modules, activations):
    """Puts torch's function in place of each call of such a module, if it still computes the same."""
    same = {}
    for node in list(graph.nodes):
        module = modules[node.target] if node.op == "call_module" else None
        if type(module) not in activations or len(node.args) != 1 or node.kwargs or layers.has_hooks(module):
            continue
        name, param = activations[type(module)]
        if module not in same:
            same[module] = _problem(module, name, param) is None
        if same[module]:
            with graph.inserting_before(node):
                new = graph.call_function(layers.FUNCTIONS[name][0], node.args, _arguments(name, param))
            node.replace_all_uses_with(new)
            graph.erase_node(node)
