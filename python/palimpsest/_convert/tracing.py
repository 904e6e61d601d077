"""The graph of a module's forward, by torch.fx, and the conditions under which it stands for the forward."""
import argparse
import cmath
import collections
import contextlib
import dataclasses
import enum
import inspect
import itertools
import keyword
import operator
import random
import sys
import threading
import types

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from palimpsest._convert import aliases, layers, questions, states

FORWARD = "_palimpsest_forward"  #: the name of a converted module's own forward
CONSTANTS = (bool, int, float, str, type(None))
lock = threading.RLock()  #: torch.fx changes nn.Module while it traces


class NotTraceable(Exception):
    """The forward of a module has no graph that is its own for all inputs; says why."""


_is_autocast_enabled = torch.is_autocast_enabled


def _context():
    hooks = saved_tensors_hooks()
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks and tuple(map(id, hooks)),
            *((_is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")))


def saved_tensors_hooks():
    """The innermost hooks on saved tensors, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


# ---- Values


def _refusal(problem):
    def refuse(self, *_):
        self.tracer.refuse(problem)
    return refuse


class _Untyped:
    """isinstance() of a stand-in has no answer: "no" would be wrong, and "a tensor" makes C++ read it as one. torch's functions
    in C++ ask, too, before they leave the call to the stand-in. Nor has it a number, a length or a text, or attributes to set."""

    __int__ = __float__ = __complex__ = _refusal("its forward makes a number of a value")
    __len__ = _refusal("its forward asks for the length of a value")
    __delattr__ = _refusal("its forward deletes an attribute of a value")

    def __setattr__(self, name, value):
        if questions.is_of_a_forward(sys._getframe(1)):
            self.tracer.refuse(f"its forward sets {name} of a value")
        super().__setattr__(name, value)

    def __hash__(self):
        if questions.is_of_a_forward(sys._getframe(1)):
            self.tracer.refuse("its forward looks a value up")
        return id(self)

    def __repr__(self):
        frame = sys._getframe(1)
        if questions.is_of_a_forward(frame) and not questions.only_says(frame):
            self.tracer.refuse("its forward makes text of a value")
        return super().__repr__()

    @property
    def __class__(self):
        self.tracer.asked_by = questions.called_in_cpp(sys._getframe(1))
        if self.tracer.asked_by is None:
            self.tracer.refuse("its forward asks for the type of a value, or keeps one")
        return fx.Proxy


class _Attribute(_Untyped, fx.proxy.Attribute):
    pass


class _Value(_Untyped, fx.Proxy):
    """A value of which x += y is recorded as such: torch.fx records x = x + y, and other names of x keep the old value."""

    def __getattr__(self, name):
        return _Attribute(self, name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return fx.Proxy.__torch_function__(function, types, args, kwargs)  # looks for any Proxy, and not for this class


def _in_place(operation):
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for _operation in aliases.ARITHMETIC_IN_PLACE:
    setattr(_Value, f"__{_operation.__name__}__", _in_place(_operation))


class _Parts(_Value):
    """The parts of a chunk, or of a split into given sizes: their number is known, so a forward may make a list of them."""

    def __len__(self):
        return layers.parts_of_split(self.node)

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])


# ---- Tracing


class _Tracer(fx.Tracer):
    """Goes into every module but torch's own, those that somebody listens to, and `opaque` ones."""

    proxy_buffer_attributes = True

    def __init__(self, opaque):
        super().__init__()
        self._opaque = opaque
        self._context = _context()
        self._thread = threading.get_ident()
        self._ordered = {}  # by id, (OrderedDict, its contents, its node)
        self._made = {}  # by id, modules that the forward makes: nn.ReLU()(x)
        self.asked_by = None  #: the function in C++ that asked for a type, and is to make a node next
        self.problem = None  #: why there is no graph; the forward may have caught the error

    def note(self, problem):
        self.problem = self.problem or problem

    def refuse(self, problem):
        self.note(problem)
        raise NotTraceable(problem)

    def _note_failed_call(self, operation, target):
        """Notes a call in C++ that asked for a type and made no node: its error came from the stand-in alone, and the forward
        caught it."""
        if operation == "get_attr" or target is getattr:  # the arguments of the call make such nodes before it
            return
        if self.asked_by not in (None, target):
            self.note(f"its forward calls {self.asked_by.__name__} in a way that has no graph")
        self.asked_by = None

    @contextlib.contextmanager
    def hears_of_new_modules(self):
        """Remembers the modules that the forward makes."""
        original = nn.Module.__init__

        def init(module, *args, **kwargs):
            original(module, *args, **kwargs)
            if self.is_tracing():
                self._made[id(module)] = module

        try:
            nn.Module.__init__ = init
            yield
        finally:
            nn.Module.__init__ = original

    def is_tracing(self):
        """Whether this thread is the one that traces."""
        return threading.get_ident() == self._thread

    def create_node(self, *arguments, **keywords):
        """Refuses what a forward does under no_grad, autocast, a checkpoint or in a Function: a graph has no contexts."""
        if _context() != self._context:
            self.refuse("its forward changes the gradient mode, autocast or what autograd saves")
        self._note_failed_call(*arguments[:2])
        node = super().create_node(*arguments, **keywords)
        self.questions.look(node)
        if self.problem:
            raise NotTraceable(self.problem)
        return node

    def create_arg(self, a):
        kind = type(a)
        if issubclass(kind, fx.Proxy):
            return a.node
        if kind is collections.OrderedDict and not vars(a):
            return self._ordered_dict(a)
        if not _has_code(a):
            self.refuse(f"its forward passes on or returns a value of {kind.__name__}")
        plain = next((p for p in (float, int, complex, str) if issubclass(kind, p)), None)
        if plain is not None and kind is not bool and not issubclass(kind, enum.Enum):
            a = plain(a)  # np.float64(1.5) would be code, with a name that it lacks
        return super().create_arg(a)

    def _ordered_dict(self, value):
        """The node of an OrderedDict: the same for one that is used twice."""
        contents = [(k, id(v)) for k, v in value.items()]
        known = self._ordered.get(id(value))
        if known is None or known[1] != contents:
            parts = [(self.create_arg(k), self.create_arg(v)) for k, v in value.items()]
            known = self._ordered[id(value)] = value, contents, self.create_node("call_function", type(value), (parts,), {})
        return known[2]

    def to_bool(self, obj):
        self.refuse("its forward branches on a value")

    def iter(self, obj):
        self.refuse("its forward takes as many parts as a value has")

    def proxy(self, node):
        return (_Value if layers.parts_of_split(node) is None else _Parts)(node, self)

    def call_module(self, module, forward, args, kwargs):
        if not self.is_tracing():
            return forward(*args, **kwargs)
        if self._is_made_here(module):
            return module.forward(*args, **kwargs)
        return super().call_module(module, module.forward, args, kwargs)  # without the hooks on all modules

    def _is_made_here(self, module):
        """Whether the forward makes the module, and it is one of torch's without weights, which nobody else can change."""
        return (id(module) in self._made and type(module).__module__.startswith("torch.nn.modules.")
                and not layers.has_hooks(module) and not any(True for _ in (*module.parameters(), *module.buffers())))

    def getattr(self, name, value, cache):
        return super().getattr(name, value, cache) if self.is_tracing() else value

    def is_leaf_module(self, module, name):
        return (super().is_leaf_module(module, name) or module in self._opaque or layers.has_hooks(module)
                or layers.is_norm(module) or layers.is_dense_block(module) or hasattr(module, FORWARD)
                or layers.is_torchs_convolution(module)
                or type(module).__module__.startswith(("palimpsest.", "inplace_abn")))


def _has_code(value):
    """Whether torch.fx writes code that makes an equal value of the same type."""
    kind = type(value)
    if issubclass(kind, dict):
        return kind is dict and not any(isinstance(k, enum.Enum) for k in value)
    if issubclass(kind, (list, tuple)):
        return kind in (list, tuple, torch.Size, fx.immutable_collections.immutable_list) or hasattr(kind, "_fields")
    if issubclass(kind, enum.Flag) or (issubclass(kind, complex) and not cmath.isfinite(value)):
        return False
    if issubclass(kind, type) or not dataclasses.is_dataclass(kind):
        return True
    fields = dataclasses.fields(value)
    return all(f.init for f in fields) and getattr(value, "__dict__", {}).keys() <= {f.name for f in fields}


class _OwnTensors(TorchFunctionMode):
    """Refuses a forward that computes with tensors of the module now, rather than when the graph runs."""

    def __init__(self, tracer, modules):
        super().__init__()
        self._tracer = tracer
        values = [v for m in modules for v in (*m._parameters.values(), *m._buffers.values(), *states.own_attributes(m).values())]
        self._tensors = {id(t): t for t in aliases.leaves(values) if isinstance(t, torch.Tensor)}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = list(aliases.leaves((args, kwargs)))
        if any(issubclass(type(a), fx.Proxy) for a in given):
            return fx.Proxy.__torch_function__(function, types, args, kwargs)
        if any(id(a) in self._tensors for a in given):
            self._tracer.refuse("its forward reads or writes a tensor of its own while it is traced")
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _without_surroundings(tracer):
    """Refuses a forward that asks for what may be another when the graph runs, or that sets the state of torch's generators."""
    places = [(torch, "is_autocast_enabled"), (torch, "is_autocast_cpu_enabled")]
    places += [(place, name) for place in (torch, torch.random) for name in ("manual_seed", "seed", "set_rng_state")]
    places += [(torch.random, "fork_rng"), (torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all")]
    places += [(torch.distributed, name) for name in ("is_initialized", "get_rank", "get_world_size")
               if hasattr(torch.distributed, name)]
    originals = [getattr(place, name) for place, name in places]

    def refusing(name, original):
        def ask(*arguments, **keywords):
            if tracer.is_tracing():
                tracer.refuse(f"its forward calls {name}")
            return original(*arguments, **keywords)
        return ask

    try:
        for (place, name), original in zip(places, originals):
            setattr(place, name, refusing(name, original))
        yield
    finally:
        for (place, name), original in zip(places, originals):
            setattr(place, name, original)


def containers_of(value, depth=4):
    """The lists, dicts, sets in a value, and the attributes of simple objects."""
    kind = type(value)  # isinstance() would ask the object
    if issubclass(kind, (list, dict, set, collections.deque)):
        yield value
    elif is_record(value):
        value = vars(value)
        yield value
    elif not issubclass(kind, tuple):
        return
    if depth:
        for part in list(value.values() if issubclass(type(value), dict) else value):
            yield from containers_of(part, depth - 1)


def is_record(value):
    kind = type(value)
    return states.attributes_of(value) is not None and (
        issubclass(kind, (types.SimpleNamespace, argparse.Namespace)) or dataclasses.is_dataclass(kind))


def contents_of(container):
    return [part for pair in container.items() for part in pair] if isinstance(container, dict) else list(container)


def _are_same(a, b):
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _state(modules):
    """The attributes of modules and what they hold, by name."""
    found, classes = {}, {}
    for module in modules:
        d = module.__dict__
        found.update({id(t): (k, t) for k, t in d.items() if k in ("_parameters", "_buffers", "_modules")})
        found[id(d)] = ("an attribute", d)
        classes.update({c: None for c in type(module).__mro__[:-2] if not c.__module__.startswith("torch.")})
        for name, value in states.own_attributes(module).items():
            found.update({id(c): (name, c) for c in containers_of(value)})
            attributes = states.attributes_of(value)
            if attributes is not None and not issubclass(type(value), (nn.Module, torch.Tensor, type, types.FunctionType,
                                                                       types.ModuleType)):
                found[id(attributes)] = (name, attributes)
    for kind in classes:
        for name, value in vars(kind).items():
            found.update({id(c): (name, c) for c in containers_of(value) if not name.startswith("__")})
    return [(name, container, contents_of(container)) for name, container in found.values() if container is not None]


def _restored(before):
    """Puts back what tracing changed. Returns the name of an attribute, or None."""
    changed = None
    for name, container, contents in before:
        now = contents_of(container)
        if _are_same(now, contents):
            continue
        changed = changed or name
        if name == "an attribute":
            was = dict(zip(contents[::2], contents[1::2]))
            changed = next((k for k in {**container, **was} if k not in was or container.get(k) is not was[k]), changed)
        container.clear()
        if isinstance(container, dict):
            container.update(zip(contents[::2], contents[1::2]))
        else:
            (container.update if isinstance(container, set) else container.extend)(contents)
    return changed


def _random_states():
    """(state, function that sets it) of each source of random numbers."""
    states = [(torch.get_rng_state(), torch.set_rng_state), (random.getstate(), random.setstate)]
    if torch.cuda.is_initialized():
        states.append((torch.cuda.get_rng_state(), torch.cuda.set_rng_state))
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states.append(((kind, keys.tobytes(), *rest), lambda _: numpy.random.set_state((kind, keys, *rest))))
    return states


def _graph(tracer, module, constants):
    """(graph, None), or (None, why there is none)."""
    try:
        tracer.questions = questions.Questions(dict(module.named_modules(remove_duplicate=False)), tracer.note)
        with torch.enable_grad(), _without_surroundings(tracer), _OwnTensors(tracer, module.modules()), \
                tracer.hears_of_new_modules(), tracer.questions:
            tracer._context = _context()
            return tracer.trace(module, concrete_args=constants or None), tracer.problem
    except Exception as error:  # noqa: BLE001: whatever the forward of a stranger raises on a stand-in for a tensor
        return None, tracer.problem or str(error).strip().split("\n")[0] or type(error).__name__


def trace(module, opaque=(), constants=None):
    """The graph of module.forward with the tensors as inputs and `constants` (name to value) as they are.

    Raises NotTraceable, also for a forward whose graph would not stand for it: one that draws random numbers by itself, keeps
    tensors, changes attributes, or depends on values of its tensors. The module is what it was afterwards."""
    with lock:
        tracer = _Tracer(set(opaque))
        tracer.traced_func_name = FORWARD if hasattr(module, FORWARD) else "forward"
        held = states.held_by(list(module.modules()))
        before, numbers = _state(module.modules()), _random_states()
        graph, problem = _graph(tracer, module, constants)
        changed, moved = _restored(before), states.put_back(held)
        drew = False
        for (was, restore), (now, _) in zip(numbers, _random_states()):
            if not (torch.equal(was, now) if isinstance(was, torch.Tensor) else was == now):
                drew = True
                restore(was)
    if problem is None and (changed or moved):
        problem = f"its forward sets {changed or moved}"
    if problem is None and drew:
        problem = "its forward draws random numbers to decide"
    if problem is None and any(map(keyword.iskeyword, _names_in(graph))):
        problem = "a word of Python is the name of one of its parts"
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


def _names_in(graph):
    return itertools.chain.from_iterable(n.target.split(".") for n in graph.nodes if n.op in ("call_module", "get_attr"))


def usual_call(module):
    """(number of inputs, constants) of a call with nothing but what forward requires."""
    forward = getattr(module, FORWARD, module.forward)
    constants, inputs = {}, 0
    for parameter in inspect.signature(forward).parameters.values():
        if parameter.default is not parameter.empty:
            if type(parameter.default) in CONSTANTS:
                constants[parameter.name] = parameter.default
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            inputs += 1
    return inputs, constants


def optional_inputs(module):
    """The names of the inputs that may be None."""
    forward = getattr(module, FORWARD, module.forward)
    return [p.name for p in inspect.signature(forward).parameters.values() if p.default is None]


def find_opaque(module, constants=None, called=()):
    """The submodules that trace() must not enter for `module` to have a graph; raises NotTraceable if it has none.

    constants: as for trace(); those of the usual call if None. called: submodules that it must not enter anyway."""
    if "forward" in module.__dict__:
        raise NotTraceable("its forward was replaced")
    constants = usual_call(module)[1] if constants is None else constants
    opaque = list(called)
    try:
        trace(module, opaque, constants)
    except NotTraceable:
        found = [m for child in module.children() if child not in opaque for m in _opaque_within(child)]
        if not found:
            raise
        opaque += found
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


def _kind(value):
    if isinstance(value, torch.Tensor):
        return None
    return (type(value), value) if type(value) in CONSTANTS else type(value)


def call_key(arguments, keywords):
    """Which inputs of a call are tensors, and the values of those that are constants: one graph is for one key."""
    key = tuple([_kind(a) for a in arguments])
    return key + tuple((k, _kind(v)) for k, v in sorted(keywords.items())) if keywords else key
