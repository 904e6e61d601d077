"""What a forward asks about its values that a stand-in answers wrongly: is one None, is it another one, what is its type.

A stand-in is never None, and has every attribute. Python calls nobody for `is`, so the questions are looked up in the source
of each function that runs, and the values that they are about in its frame."""
import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import operator
import sys
import textwrap
import types

import torch
from torch import fx, nn

from palimpsest._convert import aliases

_MAY_BE_NONE = ("grad", "grad_fn")  # of a tensor
_METHODS_THAT_MAY_GIVE_NONE = ("get", "pop", "setdefault")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # ask about what the function around them makes
_CONTAINERS = (list, tuple, dict)
_UNKNOWN = "", frozenset()  # what a question is about


def _lists_of(value, depth=3):
    """The containers within a container."""
    for part in (value.values() if isinstance(value, dict) else value) if isinstance(value, _CONTAINERS) else ():
        if isinstance(part, _CONTAINERS):
            yield part
            if depth:
                yield from _lists_of(part, depth - 1)


def _names(expression):
    return {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}


def _is_call_of(expression, *names):
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id in names \
        and bool(expression.args)


def _is_question(instruction):
    return instruction.opname == "IS_OP" or "IF_NONE" in instruction.opname or "IF_NOT_NONE" in instruction.opname


def _catches(instruction):
    return instruction.opname in ("PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH")


def _is_of_match(instruction):
    return instruction.opname in ("MATCH_SEQUENCE", "MATCH_MAPPING", "MATCH_CLASS", "MATCH_KEYS")


def _comprehensions(code):
    return [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name in _COMPREHENSIONS]


def _asks(code):
    """Whether a function compares by `is`, matches a pattern, or asks for a type, an attribute or whether it can call."""
    return any(_is_question(i) or _is_of_match(i) for i in dis.get_instructions(code)) \
        or not {"type", "hasattr", "callable"}.isdisjoint(code.co_names) or any(map(_asks, _comprehensions(code)))


def _may_ask(code):
    """Whether a function calls getattr, which asks if it has a default, or catches errors, which may tell what a value lacks."""
    return "getattr" in code.co_names or any(map(_catches, dis.get_instructions(code))) \
        or any(map(_may_ask, _comprehensions(code)))


def _instructions(code):
    """The instructions that do something."""
    return [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOT_TAKEN", "PUSH_NULL")]


def _given_to_getattr(code):
    """The variables whose attributes code without source may ask for with a default."""
    instructions = _instructions(code)
    names = set()
    for instruction, next_one in zip(instructions, instructions[1:]):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval == "getattr":
            is_name = next_one.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
            name = next_one.argval
            names |= {name[0] if isinstance(name, tuple) else name} if is_name else set(code.co_varnames)
    return frozenset(names)


def _questions_in_bytecode(code):
    """_questions() of a lambda within an expression, and of code without source: it may be asked of more variables."""
    instructions = _instructions(code)
    of_none, of_part = set(), set()
    asks_for_types = any(map(_is_of_match, instructions)) \
        or not {"type", "hasattr", "callable", "getattr"}.isdisjoint(code.co_names)
    of_any = set(code.co_varnames) if asks_for_types else set()
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
            of_part.add(_UNKNOWN)
    return frozenset(of_none), frozenset(of_any), frozenset(of_part)


def _root(expression):
    """(variable that an expression is a part of, names of what is given to functions on the way)."""
    names = set()
    while not isinstance(expression, ast.Name):
        if isinstance(expression, ast.Call):
            given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
            if not all(isinstance(part, (ast.Name, ast.Constant)) for part in given):
                return _UNKNOWN
            names |= set().union(*map(_names, given))
            expression = expression.func
        elif isinstance(expression, (ast.Subscript, ast.Attribute)):
            expression = expression.value
        else:
            return _UNKNOWN
    return expression.id, frozenset(names)


def _bindings_out_of_sight(tree, name):
    """_root() of the values that a variable may have before its question, but has no more when somebody looks."""
    names = [part for part in ast.walk(tree) if isinstance(part, ast.Name) and part.id == name]
    stored = [part for part in names if isinstance(part.ctx, ast.Store)]
    last_read = max((part.lineno for part in names if isinstance(part.ctx, ast.Load)), default=0)
    is_parameter = any(isinstance(part, ast.arg) and part.arg == name for part in ast.walk(tree))
    for part in ast.walk(tree):
        if isinstance(part, (ast.For, ast.comprehension)) and name in _names(part.target):
            yield from ((other, frozenset()) for other in _names(part.iter))
        elif isinstance(part, (ast.Assign, ast.NamedExpr, ast.AnnAssign)) and part.value is not None:
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            is_bound = any(name in _names(target) for target in targets)
            is_again = len(stored) + is_parameter > 1 or any(isinstance(other.ctx, ast.Del) for other in names)
            if is_bound and is_again and part.value.lineno <= last_read and not isinstance(part.value, ast.Constant):
                yield _UNKNOWN


def _syntax(code):
    """(syntax tree of a function, by how much its source is indented), or None if its source is not to be had."""
    try:
        source = inspect.getsource(code)
        dedented = textwrap.dedent(source)
        tree = ast.parse(dedented)
    except (OSError, SyntaxError, ValueError):
        return None
    return tree, (len(source) - len(source.lstrip())) - (len(dedented) - len(dedented.lstrip()))


# Functions that give a text to a person: of Python, torch, logging, transformers and lightning.
_SAYING = frozenset("""print _assert _check assert_ check warn warn_once warning warning_once rank_zero_warn debug debug_once
info info_once rank_zero_info error exception critical log write""".split())


def _says(statement):
    """Whether a statement is an error, a check or a message."""
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    return getattr(call, "attr", getattr(call, "id", None)) in _SAYING


def _range(part):
    return (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


@functools.lru_cache(maxsize=4096)
def _statements(code):
    """(parts of a function that hold no statements, by how much its source is indented).

    A part is (begin, end, whether it only says something), with places as (line, column) of the source without indentation."""
    syntax = _syntax(code)
    if syntax is None:
        return (), 0
    tree, indentation = syntax
    statements = [part for part in ast.walk(tree) if isinstance(part, ast.stmt)]
    heard = {id(name) for part in statements if _says(part) or isinstance(part, ast.Assert)
             for name in ast.walk(part.msg or part.test if isinstance(part, ast.Assert) else part)}
    unheard = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
               and id(part) not in heard}
    found = []
    for part in statements:
        if isinstance(part, ast.Assert):
            found += [(*_range(part.test), False), *[(*_range(part.msg), True)] * bool(part.msg)]
        elif hasattr(part, "body"):
            heads = [head for field in ("test", "iter", "subject", "items") for head in _as_list(getattr(part, field, []))]
            found += [(*_range(getattr(head, "context_expr", head)), False) for head in heads]
        else:
            # A text in a variable that is only read to say it.
            is_kept = isinstance(part, ast.Assign) and all(isinstance(t, ast.Name) and t.id not in unheard for t in part.targets)
            found.append((*_range(part), _says(part) or is_kept))
    return tuple(found), indentation


def _as_list(value):
    return value if isinstance(value, list) else [value]


def only_says(frame):
    """Whether what a function does now is an error, a check or a message: the text of a value is for a person to read."""
    code, (statements, indentation) = frame.f_code, _statements(frame.f_code)
    first = last = frame.f_lineno
    begin = end = None
    if hasattr(code, "co_positions"):  # from Python 3.11 on
        first, last, begin, end = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    if None in (first, last, begin, end):
        line = frame.f_lineno - code.co_firstlineno + 1
        here = [says for (begin, _), (end, _), says in statements if begin <= line <= end]
        return bool(here) and all(here)
    before = code.co_firstlineno - 1
    start, stop = (first - before, begin - indentation), (last - before, end - indentation)
    around = [(begin, end, says) for begin, end, says in statements if begin <= start and stop <= end]
    return bool(around) and max(around)[2]  # the innermost one begins last


def _chain(expression):
    """(variable, names and constant indices of the parts on the way) of self.blocks[0].weight; None of anything else."""
    path = []
    while not isinstance(expression, ast.Name):
        if isinstance(expression, ast.Attribute):
            path.append(expression.attr)
        elif isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
            path.append((expression.slice.value,))
        else:
            return None
        expression = expression.value
    return expression.id, tuple(reversed(path))


def _reaches_tensor(value, path):
    """How many parts of a tensor of a module a _chain() names after it; -1 if it comes to no tensor."""
    for at, name in enumerate(path):
        if isinstance(name, tuple):
            try:
                value = value[name[0]] if isinstance(value, (nn.ModuleList, nn.ModuleDict, nn.Sequential, *_CONTAINERS)) else None
            except (KeyError, IndexError, TypeError):
                return -1
        elif not isinstance(value, nn.Module):
            return -1
        elif value._parameters.get(name) is not None or value._buffers.get(name) is not None:
            return len(path) - at - 1
        else:
            value = value._modules.get(name, value.__dict__.get(name))
    return -1


_ERRORS_OF_ACCESS = frozenset("KeyError IndexError LookupError AttributeError TypeError Exception BaseException".split())


def _catches_access(handler):
    """Whether an except clause catches the errors of an entry or attribute that is missing."""
    kinds = _as_list(getattr(handler.type, "elts", handler.type))
    return any(kind is None or getattr(kind, "id", getattr(kind, "attr", None)) in _ERRORS_OF_ACCESS for kind in kinds)


def _caught(tree):
    """The statements of which a function may catch an error of access."""
    for part in ast.walk(tree):
        calls = [item.context_expr for item in part.items] if isinstance(part, ast.With) else []
        if isinstance(part, (ast.Try, getattr(ast, "TryStar", ast.Try))) and any(map(_catches_access, part.handlers)) or any(
                isinstance(call, ast.Call) and "suppress" in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))
                for call in calls):
            yield from part.body


def _asked_by_errors(tree):
    """The names of variables of which a function may ask by an error whether they have an entry or an attribute."""
    for part in itertools.chain.from_iterable(map(ast.walk, _caught(tree))):
        if isinstance(part, ast.Subscript) and isinstance(part.slice, (ast.Constant, ast.Name)) \
                or isinstance(part, ast.Attribute) and not hasattr(torch.Tensor, part.attr):
            if isinstance(part.value, ast.Name):
                yield part.value.id


@functools.lru_cache(maxsize=4096)
def _questions(code):
    """(names of variables that a function compares to a constant by `is`, names of which it asks the type, an attribute or
    whether two are one, _root() of each part of something or result of a call that it compares, _chain()s of which it asks
    something, with the number of their parts behind a tensor that make it a question, names of which it may ask by an error
    whether they have an entry), or None if it asks nothing."""
    asks = _asks(code)
    if not asks and not _may_ask(code):
        return None
    syntax = _syntax(code)
    if syntax is None:
        of_none, of_any, of_part = _questions_in_bytecode(code) if asks else [frozenset()] * 3
        return of_none, of_any | _given_to_getattr(code), of_part, frozenset(), \
            frozenset(code.co_varnames if any(map(_catches, dis.get_instructions(code))) else ())
    tree, _ = syntax
    of_none, of_any, of_part, of_chain = set(), set(), set(), set()
    for part in ast.walk(tree):
        if _is_call_of(part, "type", "hasattr", "callable") or _is_call_of(part, "getattr") and len(part.args) > 2:
            of_any |= _names(part.args[0])
            of_chain.add((_chain(part.args[0]), 0))
        elif isinstance(part, ast.Match):
            patterns = [type(p) for case in part.cases for p in ast.walk(case.pattern)]
            if not {ast.MatchSequence, ast.MatchMapping, ast.MatchClass}.isdisjoint(patterns):
                of_any |= _names(part.subject)
            elif ast.MatchSingleton in patterns and isinstance(part.subject, ast.Name):
                of_none.add(part.subject.id)
            elif ast.MatchSingleton in patterns:
                of_any |= _names(part.subject) if isinstance(part.subject, (ast.Attribute, ast.Tuple)) else set()
                of_part.add(_root(part.subject))
        elif isinstance(part, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in part.ops):
            values = [v for v in (part.left, *part.comparators) if not isinstance(v, ast.Constant)]
            of_chain |= {(_chain(value), 1) for value in values}  # one parameter has one stand-in, so that `is` tells two apart
            for value in values:
                if isinstance(value, ast.Attribute) or _is_call_of(value, "getattr"):
                    of_any |= _names(value if isinstance(value, ast.Attribute) else value.args[0])
                elif isinstance(value, ast.Name):
                    (of_none if len(values) == 1 else of_any).add(value.id)
                elif not _is_call_of(value, "type"):
                    of_part.add(_root(value))
    of_part |= {root for name in of_none for root in _bindings_out_of_sight(tree, name)}
    of_chain = {(*chain, least) for chain, least in of_chain if chain is not None}
    return frozenset(of_none), frozenset(of_any), frozenset(of_part), frozenset(of_chain), frozenset(_asked_by_errors(tree))


def called_in_cpp(frame):
    """The function of torch's in C++ that a frame calls now, as its source names it: F.avg_pool2d(x, x.size(2)); else None."""
    function = _callee(frame)
    is_in_cpp = type(function) is types.BuiltinFunctionType and (
        (function.__module__ or "").startswith("torch._C._")
        or getattr(torch._C._VariableFunctions, function.__name__, None) is function)
    return function if is_in_cpp else None


def _callee(frame):
    """The function that a frame calls now, if it is a variable or a name in a module; else None."""
    if not hasattr(frame.f_code, "co_positions"):  # Python 3.10
        return None
    where = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if None in where:
        return None
    first, last, begin, end = where
    lines = [linecache.getline(frame.f_code.co_filename, n, frame.f_globals).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(b"".join(lines).decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return _value_of(call.func, frame) if isinstance(call, ast.Call) else None


def _value_of(expression, frame):
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if not isinstance(expression, ast.Attribute):
        return None
    module = _value_of(expression.value, frame)
    return getattr(module, expression.attr, None) if type(module) is types.ModuleType else None


def is_of_a_forward(frame):
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
        values = [v for m in modules.values() for k, v in m.__dict__.items() if k not in ("_parameters", "_buffers")]
        self._containers = {id(c): c for v in values for c in (v, *_lists_of(v)) if isinstance(c, _CONTAINERS)}

    def __enter__(self):
        """Hears of what functions return: as a profiler, or, under one that is not in Python, as a debugger (slower)."""
        self._restore, others = None, sys.getprofile()
        if others is None or isinstance(others, (types.FunctionType, types.MethodType)):
            def hear(frame, event, argument):
                if others is not None:
                    others(frame, event, argument)
                self._hear(frame, event, argument)

            sys.setprofile(hear)
            self._restore = functools.partial(sys.setprofile, others)
        elif sys.gettrace() is None:
            sys.settrace(self._hear_call)
            self._restore = functools.partial(sys.settrace, None)
        return self

    def __exit__(self, *_):
        if self._restore is not None:
            self._restore()

    def _hear_call(self, frame, event, argument):
        if not is_of_a_forward(frame):
            return None
        frame.f_trace_lines = False
        return self._hear

    def _hear(self, frame, event, argument):
        if event == "return" and is_of_a_forward(frame):
            self._look_at(frame)
            if any(map(self._may_be_none, self._stand_ins(argument))):
                frame = frame.f_back
                while frame is not None and not is_of_a_forward(frame):
                    frame = frame.f_back
                if frame is not None:
                    self._look_at(frame, is_maker=True)
        return self._hear

    def look(self, made):
        """Looks at all functions that run now. made: the node that one of them makes."""
        frame = sys._getframe(2)
        is_maker = may_be_none = _may_be_none(made, self._modules)
        while frame is not None and not isinstance(frame.f_locals.get("self") if frame.f_code.co_name == "trace" else None,
                                                   fx.Tracer):
            self._look_at(frame, is_maker, may_be_none and self._restore is None)
            is_maker = is_maker and not is_of_a_forward(frame)
            frame = frame.f_back

    def _look_at(self, frame, is_maker=False, is_deaf=False):
        """is_maker: the function makes or gets a value that may be None now. is_deaf: one does, and nobody hears of its end."""
        if frame.f_code in self._quiet:
            return
        asked = _questions(frame.f_code) if is_of_a_forward(frame) else None
        if asked is None:
            self._quiet.add(frame.f_code)
            return
        of_none, of_any, of_part, of_chain, of_entries = asked
        values = frame.f_locals
        if any(self._stand_ins(values.get(name)) for name in of_any) \
                or any(issubclass(type(values.get(name)), fx.Proxy) for name in of_entries) \
                or any(_reaches_tensor(values.get(name), path) >= least for name, path, least in of_chain):
            self._problem("its forward asks for the type of a value, an attribute, or whether two are one")
        elif (is_deaf and (of_none or of_part)) or (is_maker and not all(self._is_own(frame, *root) for root in of_part)) \
                or any(self._may_be_none(value) for name in (*of_none, *(root for root, _ in of_part))
                       for value in self._stand_ins(values.get(name))):
            self._problem("its forward asks whether a value is None that may be")

    def _is_own(self, frame, root, given):
        """Whether what starts at a variable is a part of a module, or what it makes of none of the forward's values."""
        value = frame.f_locals.get(root, frame.f_globals.get(root, self))
        is_builtin = value is self and root not in frame.f_code.co_varnames and hasattr(builtins, root)
        return (is_builtin or issubclass(type(value), nn.Module) or id(value) in self._containers) and all(
            name in frame.f_locals and not self._stand_ins(frame.f_locals[name]) for name in given)

    def _stand_ins(self, value):
        return [leaf for leaf in aliases.leaves(value) if issubclass(type(leaf), fx.Proxy)]

    def _may_be_none(self, value):
        if issubclass(type(value), fx.proxy.Attribute):  # has no node before somebody uses it
            return _attribute_may_be_none(value.attr)
        return _may_be_none(value.node, self._modules)
