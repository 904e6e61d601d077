"""What a plan depends on beside its inputs: when it holds no more, another one is made."""
import collections
import contextlib
import copy
import itertools
import operator
import sys

import torch
from torch import nn

from palimpsest._convert import layers, states, tracing


@contextlib.contextmanager
def _heard(hear):
    """Calls hear(module, name) for each attribute of a module that is read."""
    with tracing.lock:
        before, is_own = nn.Module.__getattribute__, "__getattribute__" in nn.Module.__dict__

        def read(module, name):
            hear(module, name)
            return before(module, name)

        nn.Module.__getattribute__ = read
        try:
            yield
        finally:
            if is_own:
                nn.Module.__getattribute__ = before
            else:
                del nn.Module.__getattribute__


@contextlib.contextmanager
def recorded_reads(names):
    """Adds the names of all attributes of modules that are read: a plan depends on these alone."""
    with _heard(lambda _, name: names.add(name)):
        try:
            yield
        finally:
            names -= states.OF_EVERY_MODULE


@contextlib.contextmanager
def reads_of_forwards():
    """Gives a set, to which it adds (module, name) of the attributes that others than torch and this package read."""
    found = set()

    def hear(module, name):
        reader = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
        if name[:2] != "__" and reader not in ("torch", "palimpsest"):
            found.add((module, name))

    with _heard(hear):
        yield found


def of_called(graph, modules, reads):
    """(path, name) of those reads whose module the graph calls and does not enter, or that is torch's."""
    called = {part for node in graph.nodes if node.op == "call_module" for part in modules[node.target].modules()}
    names = {}
    for module, name in reads:
        names.setdefault(module, []).append(name)
    return {(path, name) for path, module in modules.items() if path and (module in called or _is_torchs(type(module)))
            for name in names.get(module, ())}


_hooks_of = operator.itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Convolutions: their part of a plan is chosen by these. Normalizations and linear layers: all is read when the plan runs.
_OF_CONVOLUTION = ("padding_mode", "kernel_size", "stride", "padding", "dilation", "groups")
_PLAIN = frozenset((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Linear))
_values_of_convolution = operator.itemgetter(*_OF_CONVOLUTION, "_parameters")
_bias_of = operator.methodcaller("get", "bias")  # a convolution may lack it


def _parameters_of(d):
    """Name to parameter of a module. Those of a replica of DataParallel are attributes."""
    return d["_parameters"] | d["_former_parameters"] if d.get("_former_parameters") else d["_parameters"]


def _which_are_none(d):
    return [t is None for table in (_parameters_of(d), d["_buffers"]) for _, t in sorted(table.items())]


def _part_at(root, path):
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def _values_of(root, path, names):
    """The attributes of a part that a forward has read, in a form that is the same object while a plan holds."""
    part = _part_at(root, path)
    if part is None:
        return [AttributeError] * len(names)
    d, values = part.__dict__, []
    for name in names:
        table = next((d[k] for k in ("_parameters", "_buffers", "_modules") if name in d[k]), None)
        value = d.get(name, AttributeError) if table is None else table[name]
        values.append(torch.Tensor if isinstance(value, torch.Tensor) else
                      type(value) if isinstance(value, nn.Module) else value)
    return values


def _watched(container):
    """The contents of a container; tensors by type, because a plan reads them when it runs, and nobody may keep them."""
    return [torch.Tensor if isinstance(part, torch.Tensor) else part for part in tracing.contents_of(container)]


class _Same:
    """An object that is equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return id(self.value)

    def __eq__(self, other):
        return isinstance(other, _Same) and self.value is other.value


def _frozen(value, depth=4):
    """A value that can be a key, equal as long as nobody sees a difference in `value`."""
    if type(value) in tracing.CONSTANTS:
        return type(value), value
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if depth and (isinstance(value, (list, tuple, dict, set, collections.deque)) or tracing.is_record(value)):
        contents = tracing.contents_of(vars(value) if tracing.is_record(value) else value)
        return type(value), tuple(_frozen(part, depth - 1) for part in contents)
    return _Same(value)


_OF_REGIONS_AND_REPLICAS = ("_palimpsest", "_is_replica", "_former_parameters")


def _names_read(module, read):
    """The attributes of a module, beside those of every module, that a plan may depend on."""
    kind = type(module)
    names = [k for k in module.__dict__ if k not in states.OF_EVERY_MODULE and (k in read or _is_torchs(kind))]
    is_called = isinstance(module, nn.modules.dropout._DropoutNd)  # reads its rate when it runs
    names = [k for k in names if k not in module.__dict__.get("_former_parameters", ())]
    return [k for k in names if not k.startswith(_OF_REGIONS_AND_REPLICAS) and not (is_called and k == "p")]


def _is_torchs(kind):
    return kind.__module__.startswith("torch.nn.")


class Watch:
    """All that a graph of root.forward depends on beside its inputs: types, attributes and listeners of the modules.

    signature: two modules with one signature may use one graph, which reads parameters and buffers by name when it runs.
    read: names of attributes that tracing has read. called: paths of modules that a graph calls and does not enter.
    read_of_called: (path, name) of the attributes of such modules that the forward of another one has read."""

    def __init__(self, root, read, called, read_of_called=()):
        self.root = root
        self.plans = {}       #: of this signature: kinds of inputs to plan
        self._modules = []    # those that it is about
        self._quiet = []      # dictionaries of modules without hooks
        self._listened = []   # modules with hooks
        self._sized = []      # what must not get longer or shorter
        self._convolutions = []  # dictionaries of convolutions
        self._looks = []      # (function, object): what the function gives must stay the same objects
        parts, paths, stack = [], {}, [("", root)]
        while stack:
            path, module = stack.pop()
            if module is None or id(module) in paths:
                parts.append((path, None, module and paths[id(module)], ()))
                continue
            paths[id(module)] = path
            attributes, others = self._part(path, module, read, called)
            parts.append((path, type(module), attributes, others))
            if attributes not in ("called", "listened"):
                stack.extend([(f"{path}.{k}" if path else k, child) for k, child in module._modules.items()])
        kinds = dict.fromkeys(getattr(m, "_palimpsest_class", type(m)) for m in self._modules if not _is_torchs(type(m)))
        parts += [("", kind, tuple(self._part_of_class(kind, read)), ()) for kind in kinds]
        self._looks += [(lambda kind: (kind.forward,), kind) for kind in {type(m) for m in self._modules} if _is_torchs(kind)]
        for path, names in _by_path(read_of_called):
            parts.append((path, None, tuple(map(_frozen, self._look_at_part(path, names))), ()))
        self.signature = tuple(parts)
        self._kinds = list(map(type, self._modules))
        self._sizes = list(map(len, self._sized))
        self._values = list(itertools.chain.from_iterable([get(of) for get, of in self._looks]))
        self._settings = list(map(_values_of_convolution, self._convolutions))
        self._parameters = [d["_parameters"] for d in self._convolutions]
        self._no_biases = list(self._have_no_bias())

    def _have_no_bias(self):
        return map(operator.is_, map(_bias_of, self._parameters), itertools.repeat(None))

    def holds(self):
        """Whether nothing has changed. It runs in every forward: no loop of its own, and no copy."""
        try:
            return (list(map(type, self._modules)) == self._kinds and list(map(len, self._sized)) == self._sizes
                    and not any(itertools.chain.from_iterable(map(_hooks_of, self._quiet)))
                    and list(map(_values_of_convolution, self._convolutions)) == self._settings
                    and list(self._have_no_bias()) == self._no_biases
                    and all(map(operator.is_, itertools.chain.from_iterable([get(of) for get, of in self._looks]),
                                self._values))
                    and all(map(layers.has_hooks, self._listened)))
        except (KeyError, AttributeError):
            return False

    def _part(self, path, module, read, called):
        """(attributes, others) of a module."""
        d, kind = module.__dict__, type(module)
        self._modules.append(module)
        if module is not self.root:
            if path in called or hasattr(module, tracing.FORWARD):
                return "called", ()
            if layers.has_hooks(module):
                self._listened.append(module)
                return "listened", ()
            self._quiet.append(d)
        self._sized.append(d)
        if kind in _PLAIN:
            return (), ()
        if layers.is_torchs_convolution(module):
            self._convolutions.append(d)
            return (_frozen(_values_of_convolution(d)[:-1]), _parameters_of(d).get("bias") is None), ()
        names = _names_read(module, read)
        others = [d["training"]]
        tensors = [k for k in names if isinstance(d[k], torch.Tensor)]
        plain = ["training", *[k for k in names if k not in tensors], *["_modules"] * bool(d["_modules"])]
        self._looks.append((operator.itemgetter(*plain, *plain[:len(plain) == 1]), d))  # of one name it gives no tuple
        self._looks += [(lambda d, k=k: (isinstance(d[k], torch.Tensor),), d) for k in tensors]
        self._look_into([d[k] for k in names])
        if d["_modules"]:
            self._looks.append((type(d["_modules"]).values, d["_modules"]))
        if not _is_torchs(kind) or d["_modules"]:
            self._sized.append(d["_modules"])
        if not _is_torchs(kind):
            self._sized += [d["_parameters"], d["_buffers"]]
            others += [*sorted(_parameters_of(d)), *sorted(d["_buffers"]), *_which_are_none(d)]
            if d["_parameters"] or d["_buffers"]:
                self._looks.append((_which_are_none, d))
        return tuple([(k, _frozen(d[k])) for k in names]), tuple(others)

    def _look_into(self, values):
        for container in [c for value in values for c in tracing.containers_of(value)]:
            self._sized.append(container)
            self._looks.append((_watched, container))

    def _look_at_part(self, path, names):
        self._looks.append((lambda root: _values_of(root, path, names), self.root))
        values = _values_of(self.root, path, names)
        self._look_into(values)
        return values

    def _part_of_class(self, kind, read):
        """The methods and class attributes that tracing has read."""
        names = [k for k in sorted(read | {"forward"}) if k == "forward" or not (hasattr(nn.Module, k) or k[:2] == "__")]
        names = [k for k in names if hasattr(kind, k) and getattr(kind, k) is getattr(kind, k)]
        self._looks.append((operator.attrgetter("__name__", *names), kind))
        return [(k, _frozen(getattr(kind, k))) for k in names]


def _by_path(read_of_called):
    """(path, names) of pairs (path, name)."""
    by_path = {}
    for path, name in sorted(read_of_called):
        by_path.setdefault(path, []).append(name)
    return by_path.items()


def changing(signatures):
    """The paths of modules without parts whose attributes are others in some signatures, as a rate that has a schedule.

    A plan that calls such a module, and does not enter it, fits all of them. torch's own are called already."""
    seen = {}
    for path, kind, attributes, _ in itertools.chain.from_iterable(signatures):
        seen.setdefault(path, set()).add((kind, attributes))
    parents = {path.rpartition(".")[0] for path in seen}
    return {path for path, found in seen.items() if path and path not in parents and len(found) > 1
            and len({kind for kind, _ in found}) == 1 and not any(kind is None or _is_torchs(kind) for kind, _ in found)}


def plan_conditions(root, read, called, read_of_called=()):
    """What Watch looks at, in a form that torch.compile can check while it traces."""
    conditions, stack = [], [("", (), root)]
    for path, names in _by_path(read_of_called):
        part = _part_at(root, path)
        if part is None:
            conditions.append(_absence(root, path))
            continue
        conditions.append((tuple(path.split(".")), type(part), False, True,
                           *_comparable([(k, part.__dict__[k]) for k in names if k in part.__dict__]),
                           tuple((k, getattr(part, k) is None) for k in names if k in part._parameters or k in part._buffers),
                           tuple(k for k in names if k not in part.__dict__), None))
    while stack:
        name, path, module = stack.pop()
        kind = type(module)
        is_called = module is not root and (name in called or hasattr(module, tracing.FORWARD))
        is_listened = module is not root and not is_called and layers.has_hooks(module)
        names = () if is_called or is_listened or kind in _PLAIN else \
            _OF_CONVOLUTION if layers.is_torchs_convolution(module) else ("training", *_names_read(module, read))
        attributes, objects = _comparable([(k, module.__dict__[k]) for k in names])
        parts = None if is_called or is_listened else tuple(module._modules)
        tensors = None if parts is None or (_is_torchs(kind) and not layers.is_torchs_convolution(module)) else \
            tuple((k, getattr(module, k) is None) for k in (*module._parameters, *module._buffers))
        absent = () if parts is None or _is_torchs(kind) else tuple(k for k in sorted(read) if not hasattr(module, k))
        conditions.append((path, kind, is_listened, is_called, attributes, objects, tensors or (), absent, parts))
        if parts is not None:
            stack.extend((f"{name}.{k}" if name else k, (*path, k), child) for k, child in module._modules.items()
                         if child is not None)
    return tuple(conditions)


def _absence(root, path):
    """The condition that there is no module at a path: the innermost module on it has no such part."""
    names, part = [], root
    for name in path.split("."):
        if not isinstance(part._modules.get(name), nn.Module):
            break
        names.append(name)
        part = part._modules[name]
    tensors = ((name, True),) if name in part._modules else ()
    attributes, objects = _comparable([(name, part.__dict__[name])] if name in part.__dict__ else [])
    absent = () if tensors or attributes or objects else (name,)
    return tuple(names), type(part), False, True, attributes, objects, tensors, absent, tuple(part._modules)


def _comparable(values):
    """(those that are compared by value, those that must stay the same object) of pairs of a name and a value."""
    return (tuple((k, copy.deepcopy(v)) for k, v in values if _is_comparable(v)),  # containers change in place
            tuple((k, v) for k, v in values if not _is_comparable(v) and not isinstance(v, torch.Tensor)))


def _is_comparable(value):
    if type(value) in (list, tuple, dict, set):
        return all(map(_is_comparable, value.values() if type(value) is dict else value))
    return type(value) in tracing.CONSTANTS


def is_as_planned(root, conditions):
    """Whether the modules are still those of plan_conditions()."""
    for path, kind, is_listened, is_called, attributes, objects, tensors, absent, parts in conditions:
        module = root
        for name in path:
            module = getattr(module, name, None)
        if type(module) is not kind:
            return False
        if path and not is_called:
            hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
            if bool(hooks or "forward" in module.__dict__) != is_listened:
                return False
        if parts is not None and tuple(module._modules.keys()) != parts:
            return False
        for name, is_none in tensors:
            if (getattr(module, name) is None) != is_none:
                return False
        for name in absent:
            if name in module.__dict__:
                return False
        for name, value in attributes:
            now = getattr(module, name)
            if type(now) is not type(value) or now != value:
                return False
        for name, value in objects:
            if getattr(module, name) is not value:
                return False
    return True
