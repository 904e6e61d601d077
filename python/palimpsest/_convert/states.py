"""Generators, counters, arrays and objects with slots that modules hold: a forward that moves one decides anew in each call."""
import collections
import copy
import itertools
import random
import sys
import types

import torch
from torch import nn

OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
#: objects of these packages (locks, loggers, process groups) are the program's, not the network's
PACKAGES_OF_THE_PROGRAM = frozenset({*sys.stdlib_module_names, "torch", "numpy", "palimpsest"})
_MOST_VALUES = 65536  # of an array of numpy, and of a container
_DEPTH = 4  # of objects within objects


def own_attributes(module):
    """The attributes of a module that not every module has."""
    return {k: v for k, v in module.__dict__.items() if k not in OF_EVERY_MODULE}


def held_by(modules):
    """What the modules hold, in their attributes, in containers and simple objects there, and as attributes of their classes.

    A list of (name of the attribute, state, function that gives the state, function that sets it or None)."""
    found = {}
    for module in modules:
        attributes = list(own_attributes(module).items())
        for kind in type(module).__mro__[:-2]:
            if not kind.__module__.startswith("torch."):
                attributes += [(k, v) for k, v in vars(kind).items() if not k.startswith("__")]
        for name, value in attributes:
            for part in _within(value):
                if id(part) not in found:
                    found[id(part)] = _held(name, part)
    return [held for held in found.values() if held is not None]


def _held(name, value):
    try:
        functions = _functions_of(value)
        return functions and (name, functions[0](), *functions)
    except Exception:  # noqa: BLE001: an object of a stranger, or a generator without a state
        return None


def put_back(held):
    """Sets the states that are others than before. Returns the name of one of them, or None."""
    moved = None
    for name, was, get, set_ in held:
        try:
            is_same = was == get()
        except Exception:  # noqa: BLE001: now it holds a stand-in, say
            is_same = False
        if not is_same:
            moved = moved or name
            if set_ is not None:
                set_(was)
    return moved


def _within(value, depth=_DEPTH):
    """The value, and what it consists of."""
    kind = type(value)
    if issubclass(kind, (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType)):
        return
    yield value
    if not depth:
        return
    if issubclass(kind, (types.MethodType, types.BuiltinMethodType)):
        parts = [value.__self__]
    elif issubclass(kind, (list, tuple, dict, set, collections.deque)):
        parts = list(value.values() if issubclass(kind, dict) else value) if len(value) <= _MOST_VALUES else []
    elif str(kind.__module__).partition(".")[0] in PACKAGES_OF_THE_PROGRAM and kind is not types.SimpleNamespace:
        return
    else:
        parts = [*_slots_of(value).values(), *(attributes_of(value) or {}).values()]
    for part in parts:
        yield from _within(part, depth - 1)


def attributes_of(value):
    """The dict of an object's attributes, or None; asks nothing of the object."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if type(found) is dict else None


def _slots_of(value):
    """Name to value of the slots that an object has and that are set."""
    found = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            if name in ("__dict__", "__weakref__"):
                continue
            try:
                found[name] = object.__getattribute__(value, name)
            except AttributeError:
                pass
    return found


class _Objects:
    """Equal to another if it holds the same objects."""

    def __init__(self, objects):
        self.objects = objects

    def __eq__(self, other):
        a, b = self.objects, other.objects
        return a.keys() == b.keys() and all(a[k] is b[k] for k in a)


class _State:
    """Equal to another if its values are; arrays are compared, too."""

    def __init__(self, state):
        self.state = copy.deepcopy(state)
        self._values = _plain(self.state)

    def __eq__(self, other):
        return self._values == other._values


def _plain(state):
    if isinstance(state, dict):
        return [(k, _plain(v)) for k, v in state.items()]
    return state.tobytes() if hasattr(state, "tobytes") else state


def _functions_of(value):
    """(function that gives the state, function that sets it) of a value that has one; else None."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if issubclass(kind, random.Random):
        return value.getstate, value.setstate
    if issubclass(kind, torch.Generator):
        return lambda: value.get_state().tolist(), lambda state: value.set_state(torch.tensor(state, dtype=torch.uint8))
    if kind is itertools.count:
        return lambda: repr(value), None
    if numpy is not None and hasattr(numpy, "ndarray"):
        if issubclass(kind, numpy.ndarray):
            if value.size > _MOST_VALUES or value.dtype.hasobject:
                return None
            plain = value.view(numpy.ndarray)
            return plain.tobytes, lambda state: plain.__setitem__(..., numpy.frombuffer(state, plain.dtype).reshape(plain.shape))
        if issubclass(kind, numpy.random.Generator):
            return lambda: _State(value.bit_generator.state), \
                lambda was: setattr(value.bit_generator, "state", copy.deepcopy(was.state))
        if issubclass(kind, numpy.random.RandomState):
            return lambda: _State(value.get_state(legacy=False)), lambda was: value.set_state(copy.deepcopy(was.state))
    if not _slots_of(value) or str(kind.__module__).partition(".")[0] in PACKAGES_OF_THE_PROGRAM:
        return None

    def set_slots(was):
        for name, part in was.objects.items():
            object.__setattr__(value, name, part)

    return lambda: _Objects(_slots_of(value)), set_slots
