"""What a forward asks about its values that a stand-in answers wrongly: is one None, is it another one, what is its type.

A stand-in is never None, and has every attribute. Python calls nobody for `is`, so the questions are looked up in the source
of each function that runs, and the values that they are about in its frame."""
import ast
import dis
import functools
import inspect
import operator
import sys
import textwrap

import torch
from torch import fx

from palimpsest._convert import aliases

_MAY_BE_NONE = ("grad", "grad_fn")  # of a tensor
_METHODS_THAT_MAY_GIVE_NONE = ("get", "pop", "setdefault")


def _names(expression):
    return {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}


def _is_call_of(expression, *names):
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id in names \
        and bool(expression.args)


def _is_question(instruction):
    return instruction.opname == "IS_OP" or "IF_NONE" in instruction.opname or "IF_NOT_NONE" in instruction.opname


def _has_question(code):
    return any(map(_is_question, dis.get_instructions(code))) or not {"type", "hasattr"}.isdisjoint(code.co_names)


def _questions_in_bytecode(code):
    """_questions() of a lambda within an expression, and of code without source: it may be asked of more variables."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOT_TAKEN")]
    of_none, of_part = set(), False
    of_any = set() if {"type", "hasattr", "getattr"}.isdisjoint(code.co_names) else set(code.co_varnames)
    for at, instruction in enumerate(instructions):
        if not _is_question(instruction):
            continue
        if instruction.opname == "IS_OP":
            if instructions[at - 1].opname != "LOAD_CONST":  # of two values
                of_any |= set(code.co_varnames)
            at -= 1
        start = at - 1
        while instructions[start].opname == "LOAD_ATTR":
            start -= 1
        name = instructions[start].argval
        if instructions[start].opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            (of_none if start == at - 1 else of_any).update(name if isinstance(name, tuple) else [name])
        elif instructions[start].opname != "LOAD_GLOBAL":
            of_part = True
    return frozenset(of_none), frozenset(of_any), of_part


@functools.lru_cache(maxsize=4096)
def _questions(code):
    """(names of variables that a function compares to a constant by `is`, names of which it asks the type, an attribute or
    whether two are one, whether it compares a part of something or what a call returns), or None if it asks nothing."""
    if not _has_question(code):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, ValueError):
        return _questions_in_bytecode(code)
    of_none, of_any, of_part = set(), set(), False
    for part in ast.walk(tree):
        if _is_call_of(part, "type", "hasattr"):
            of_any |= _names(part.args[0])
        elif isinstance(part, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in part.ops):
            values = [v for v in (part.left, *part.comparators) if not isinstance(v, ast.Constant)]
            for value in values:
                if isinstance(value, ast.Attribute) or _is_call_of(value, "getattr"):
                    of_any |= _names(value if isinstance(value, ast.Attribute) else value.args[0])
                elif isinstance(value, ast.Name):
                    (of_none if len(values) == 1 else of_any).add(value.id)
                elif not _is_call_of(value, "type"):
                    of_part = True
    return frozenset(of_none), frozenset(of_any), of_part


def _is_of_a_forward(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "palimpsest")


def _attribute_may_be_none(name):
    return name in _MAY_BE_NONE or not hasattr(torch.Tensor, name)


def _may_be_none(node, modules):
    """Whether a value may be None when the graph runs: part of an input, or what a function that we do not know returns."""
    if node.op == "call_module":
        return not aliases.returns_tensor(modules[node.target])
    if node.op == "call_method":
        return node.target in _METHODS_THAT_MAY_GIVE_NONE
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return _attribute_may_be_none(node.args[1])
    if node.target is operator.getitem:
        value, index = node.args[:2]
        return isinstance(index, str) or (
            isinstance(value, fx.Node) and (value.op == "placeholder" or _may_be_none(value, modules)))
    return not aliases.is_known_function(node.target)


class Questions:
    """Looks at the functions that run while a forward is traced. problem(text) hears of a question without an answer."""

    def __init__(self, modules, problem):
        self._modules, self._problem = modules, problem
        self._quiet = set()  # the code of functions that ask nothing: most, and each runs often

    def __enter__(self):
        self._hears_returns = sys.getprofile() is None  # a profiler would not come back
        if self._hears_returns:
            sys.setprofile(lambda frame, event, _: self._look_at(frame) if event == "return" else None)
        return self

    def __exit__(self, *_):
        if self._hears_returns:
            sys.setprofile(None)

    def look(self, made):
        """Looks at all functions that run now. made: the node that one of them makes."""
        frame = sys._getframe(2)
        is_maker = _may_be_none(made, self._modules)
        while frame is not None and not isinstance(frame.f_locals.get("self") if frame.f_code.co_name == "trace" else None,
                                                   fx.Tracer):
            self._look_at(frame, is_maker)
            is_maker = is_maker and not _is_of_a_forward(frame)
            frame = frame.f_back

    def _look_at(self, frame, is_maker=False):
        if frame.f_code in self._quiet:
            return
        asked = _questions(frame.f_code) if _is_of_a_forward(frame) else None
        if asked is None:
            self._quiet.add(frame.f_code)
            return
        of_none, of_any, of_part = asked
        values = frame.f_locals
        if any(self._stand_ins(values.get(name)) for name in of_any):
            self._problem("its forward asks for the type of a value, an attribute, or whether two are one")
        elif (is_maker and of_part) or any(self._may_be_none(value) for name in of_none
                                           for value in self._stand_ins(values.get(name))):
            self._problem("its forward asks whether a value is None that may be")

    def _stand_ins(self, value):
        return [leaf for leaf in aliases.leaves(value) if issubclass(type(leaf), fx.Proxy)]

    def _may_be_none(self, value):
        if issubclass(type(value), fx.proxy.Attribute):  # has no node before somebody uses it
            return _attribute_may_be_none(value.attr)
        return _may_be_none(value.node, self._modules)
