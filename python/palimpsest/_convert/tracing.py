"""The graph of a module's forward, by torch.fx, and the conditions under which it stands for the forward."""
import inspect
import operator
import random

import torch
from torch import fx, nn

from palimpsest._convert import layers

FORWARD = "_palimpsest_forward"  #: the name of a converted module's own forward
_CONSTANTS = (bool, int, float, str, type(None))


class NotTraceable(Exception):
    """The forward of a module has no graph that is its own for all inputs; says why."""


def _context():
    hooks = saved_tensors_hooks()
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks and tuple(map(id, hooks)),
            *((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")))


def saved_tensors_hooks():
    """The innermost hooks on saved tensors, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


class _Value(fx.Proxy):
    """A value of which x += y is recorded as such: torch.fx records x = x + y, and other names of x keep the old value."""


def _in_place(operation):
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for _operation in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
                   operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift):
    setattr(_Value, f"__{_operation.__name__}__", _in_place(_operation))


class _Parts(_Value):
    """The parts of a chunk, or of a split into given sizes: their number is known, so a forward may make a list of them."""

    def __len__(self):
        return layers.parts_of_split(self.node)

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])


class _Tracer(fx.Tracer):
    """Goes into every module but torch's own, those that somebody listens to, and `opaque` ones."""

    def __init__(self, opaque):
        super().__init__()
        self._opaque = opaque
        self._context = _context()

    def create_node(self, *arguments, **keywords):
        """Refuses what a forward does under no_grad, autocast, a checkpoint or in a Function: a graph has no contexts."""
        if _context() != self._context:
            raise NotTraceable("its forward changes the gradient mode, autocast or what autograd saves")
        return super().create_node(*arguments, **keywords)

    def proxy(self, node):
        return (_Value if layers.parts_of_split(node) is None else _Parts)(node, self)

    def is_leaf_module(self, module, name):
        return (super().is_leaf_module(module, name) or module in self._opaque or layers.has_hooks(module)
                or layers.is_norm(module) or layers.is_dense_block(module) or hasattr(module, FORWARD)
                or type(module).__module__.startswith(("palimpsest.", "inplace_abn")))


def _state(modules):
    return [(m, dict(m.__dict__), {k: dict(v) for k, v in m.__dict__.items() if k in ("_parameters", "_buffers", "_modules")})
            for m in modules]


def _restored(before):
    """Puts the attributes back that tracing changed. Returns the name of one, or None."""
    changed = None
    for module, attributes, tables in before:
        for name in [n for n in module.__dict__ if n not in attributes]:
            changed = name
            del module.__dict__[name]
        for name, value in attributes.items():
            if module.__dict__.get(name) is not value:
                changed = name
                module.__dict__[name] = value
        for name, table in tables.items():
            if [(k, id(v)) for k, v in module.__dict__[name].items()] != [(k, id(v)) for k, v in table.items()]:
                changed = name
                module.__dict__[name].clear()
                module.__dict__[name].update(table)
    return changed


def trace(module, opaque=(), constants=None):
    """The graph of module.forward with the tensors as inputs and `constants` (name to value) as they are.

    Raises NotTraceable, also for a forward whose graph would not stand for it: one that draws random numbers by itself, keeps
    tensors or changes attributes. The module is what it was afterwards."""
    tracer = _Tracer(set(opaque))
    tracer.traced_func_name = FORWARD if hasattr(module, FORWARD) else "forward"
    before = _state(module.modules())
    random_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        graph = tracer.trace(module, concrete_args=constants or None)
        problem = None
    except Exception as error:  # noqa: BLE001: whatever the forward of a stranger raises on a stand-in for a tensor
        graph, problem = None, str(error).strip().split("\n")[0] or type(error).__name__
    changed = _restored(before)
    drew = not torch.equal(random_state, torch.get_rng_state()) or python_state != random.getstate()
    torch.set_rng_state(random_state)
    random.setstate(python_state)
    if problem is None and changed:
        problem = f"its forward sets {changed}"
    if problem is None and drew:
        problem = "its forward draws random numbers to decide"
    if problem is not None:
        raise NotTraceable(problem)
    names = list(inspect.signature(getattr(module, tracer.traced_func_name)).parameters)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(names) or any(node.target.startswith("*") for node in inputs):
        raise NotTraceable("its forward takes any number of inputs")
    for node, name in zip(inputs, names):  # torch.fx gives constants another name
        node.target = name
    for node in list(graph.nodes):  # torch.fx compares the constants again at each call; the key of a plan has them (region.py)
        if node.op == "call_function" and node.target in (torch._assert, fx._symbolic_trace._assert_is_none):
            arguments = node.all_input_nodes
            graph.erase_node(node)
            for argument in arguments:
                if argument.op != "placeholder" and not argument.users:
                    graph.erase_node(argument)
    return graph


def usual_call(module):
    """(number of inputs, constants) of a call with nothing but what forward requires."""
    forward = getattr(module, FORWARD, module.forward)
    constants, inputs = {}, 0
    for parameter in inspect.signature(forward).parameters.values():
        if parameter.default is not parameter.empty:
            if type(parameter.default) in _CONSTANTS:
                constants[parameter.name] = parameter.default
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            inputs += 1
    return inputs, constants


def find_opaque(module, constants=None):
    """The submodules that trace() must not enter for `module` to have a graph; raises NotTraceable if it has none.

    constants: as for trace(); those of the usual call if None."""
    if "forward" in module.__dict__:
        raise NotTraceable("its forward was replaced")
    constants = usual_call(module)[1] if constants is None else constants
    try:
        trace(module, (), constants)
        return []
    except NotTraceable:
        opaque = [m for child in module.children() for m in _opaque_within(child)]
        if not opaque:
            raise
        trace(module, opaque, constants)
        return opaque


def _opaque_within(module):
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return [m for child in module.children() for m in _opaque_within(child)]
    if _Tracer(()).is_leaf_module(module, ""):
        return []
    try:
        return find_opaque(module)
    except NotTraceable:
        return [module]


def signature(root):
    """All that a graph of root.forward depends on beside its inputs: types, simple attributes and listeners of the modules.

    Two modules with one signature may use one graph, which reads parameters and buffers by name when it runs."""
    parts = []
    stack = [root]
    while stack:
        module = stack.pop()
        d = module.__dict__
        kind = type(module)
        if module is not root and (d["_forward_hooks"] or d["_forward_pre_hooks"] or d["_backward_hooks"]
                                   or d["_backward_pre_hooks"] or "forward" in d):
            parts.append((kind, "listened"))
            continue
        if kind in _PLAIN:
            parts.append(kind)
            continue
        if kind in _CONVOLUTIONS:
            parts.append((kind, d["padding_mode"], type(d["padding"])))
            continue
        parts.append((kind, tuple([(k, v if type(v) in _CONSTANTS else str(v)) for k, v in d.items() if type(v) in _SIMPLE])))
        children = d["_modules"]
        if children:
            parts.append(tuple(children))
            stack.extend([child for child in children.values() if child is not None])
    return tuple(parts)


_SIMPLE = (*_CONSTANTS, list, tuple)
# Their attributes are read when the graph runs.
_CONVOLUTIONS = frozenset((nn.Conv1d, nn.Conv2d, nn.Conv3d))
_PLAIN = frozenset((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Linear))


def plan_conditions(root):
    """What signature() says, in a form that torch.compile can check while it traces: path, type, attributes of each module."""
    conditions, stack = [], [((), root)]
    while stack:
        path, module = stack.pop()
        kind = type(module)
        is_listened = module is not root and layers.has_hooks(module)
        is_read_when_run = is_listened or kind in _PLAIN or kind in _CONVOLUTIONS
        attributes = () if is_read_when_run else tuple((k, v) for k, v in module.__dict__.items()
                                                       if type(v) in _CONSTANTS and not k.startswith("_"))
        conditions.append((path, kind, is_listened, attributes, () if is_listened else tuple(module._modules)))
        if not is_listened:
            stack.extend(((*path, name), child) for name, child in module._modules.items() if child is not None)
    return tuple(conditions)


def is_as_planned(root, conditions):
    """Whether the modules are still those of plan_conditions()."""
    for path, kind, is_listened, attributes, names in conditions:
        module = root
        for name in path:
            module = getattr(module, name)
        if type(module) is not kind:
            return False
        if path and bool(module._forward_hooks or module._forward_pre_hooks) != is_listened:
            return False
        if not is_listened and tuple(module._modules.keys()) != names:
            return False
        for name, value in attributes:
            if getattr(module, name) != value:
                return False
    return True


def _kind(value):
    if isinstance(value, torch.Tensor):
        return None
    return (type(value), value) if type(value) in _CONSTANTS else type(value)


def call_key(arguments, keywords):
    """Which inputs of a call are tensors, and the values of those that are constants: one graph is for one key."""
    key = tuple([_kind(a) for a in arguments])
    return key + tuple((k, _kind(v)) for k, v in sorted(keywords.items())) if keywords else key
