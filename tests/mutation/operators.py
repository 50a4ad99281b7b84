"""The mutants of a source file: every small change of its syntax tree that could change what the code does.

Not mutated: docstrings, annotations, decorators, imports, asserts, the text of exceptions, logs and traces (calls in
`LOGS`, keywords in `TEXTS`, f-strings, string constants), and keywords that only check or convert (`CHECKS`).
Deterministic: the same source has the same mutants in the same order, so that a seed names a sample.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LOGS = frozenset({"note", "Noted", "debug", "info", "warning", "error", "exception", "log", "print"})
TEXTS = frozenset({"why", "reason", "message", "detail", "name"})
CHECKS = frozenset({"strict", "dtype", "copy"})
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
MODULE = ""
"""As a function's name: the code that runs once, at import."""

Change = Callable[[], None]
Replace = Callable[[ast.AST], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`number`: its place among the file's mutants. `function`: the outermost function's qualified name. `repeats`: how
    many mutants of this function before it read the same."""

    path: str
    number: int
    function: str
    line: int
    before: str
    after: str
    repeats: int = 0

    @property
    def key(self) -> str:
        """Names it as long as its function has it, wherever that stands."""
        again = f" #{self.repeats + 1}" if self.repeats else ""
        return f"{self.path}::{self.function or 'module'}: {self.before} -> {self.after}{again}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function or 'module'}: {self.before} -> {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    for number, (function, line, before, after, _) in enumerate(_changes(ast.parse(source))):
        key = (function, before, after)
        found.append(Mutant(path, number, function, line, before, after, seen.get(key, 0)))
        seen[key] = seen.get(key, 0) + 1
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The tree of a source with its mutant of this number made. Lines stay as they are."""
    tree = ast.parse(source)
    for place, (_, _, _, _, change) in enumerate(_changes(tree)):
        if place == number:
            change()
            return ast.fix_missing_locations(tree)
    raise ValueError(f"there is no mutant {number}")


def _changes(tree: ast.Module) -> Iterator[tuple[str, int, str, str, Change]]:
    for function, node, replace in _nodes(tree):
        line = getattr(node, "lineno", 0)
        for after, change in _of(node, replace):
            yield function, line, _text(node), after, change


def _text(node: ast.AST) -> str:
    """In one line, and of a compound statement its head."""
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())[:160]


# -- where


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, Replace]]:
    yield from _inside(tree, MODULE, "")


def _inside(node: ast.AST, function: str, prefix: str) -> Iterator[tuple[str, ast.AST, Replace]]:
    for name, value in ast.iter_fields(node):
        if _is_left_out(node, name):
            continue
        if isinstance(value, ast.AST):
            yield from _at(value, _setter(node, name), function, prefix)
        elif isinstance(value, list):
            for place, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield from _at(one, _item_setter(value, place), function, prefix)


def _at(node: ast.AST, replace: Replace, function: str, prefix: str) -> Iterator[tuple[str, ast.AST, Replace]]:
    if _is_untouched(node) or (not function and isinstance(node, ast.Assign | ast.AnnAssign) and _makes_a_type(node)):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = f"{prefix}{node.name}"
        of = function or (MODULE if isinstance(node, ast.ClassDef) else name)
        if not isinstance(node, ast.ClassDef):
            yield from _inside(node.args, function, prefix)  # defaults are made where it is defined
        for place, one in enumerate(node.body):
            yield from _at(one, _item_setter(node.body, place), of, f"{name}." if not of else prefix)
        return
    yield function, node, replace
    yield from _inside(node, function, prefix)


def _setter(node: ast.AST, name: str) -> Replace:
    return lambda new: setattr(node, name, new)


def _item_setter(items: list[Any], place: int) -> Replace:
    def put(new: ast.AST) -> None:
        items[place] = new

    return put


def _is_left_out(node: ast.AST, field: str) -> bool:
    return field in ("annotation", "returns", "decorator_list", "type_comment") or (
        isinstance(node, ast.Raise) and field in ("exc", "cause")
    )


def _is_untouched(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith(("TYPE_CHECKING", "'__main__'")):
        return True
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_log(node.value)):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in TEXTS or node.arg in CHECKS
    return _is_log(node)


def _makes_a_type(node: ast.Assign | ast.AnnAssign) -> bool:
    """A type alias, a type variable, or `__slots__`."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if any(isinstance(target, ast.Name) and target.id in ("__slots__", "__all__") for target in targets):
        return True
    value = node.value
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias")
    return alias or called in ("TypeVar", "NewType", "Protocol") or isinstance(value, ast.Subscript | ast.Name)


def _is_log(node: ast.AST) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    first = ast.unparse(node.args[0]) if node.args else ""
    return name in LOGS or (name == "emit" and first.startswith("Noted("))


# -- what


def _of(node: ast.AST, replace: Replace) -> Iterator[tuple[str, Change]]:
    for kind, make in _MAKERS:
        if isinstance(node, kind):
            for new in make(node):
                yield _text(new) if not isinstance(new, ast.Pass) else "pass", _change(replace, new, node)


def _change(replace: Replace, new: ast.AST, old: ast.AST) -> Change:
    return lambda: replace(ast.copy_location(new, old))


def _compare(node: ast.Compare) -> Iterator[ast.AST]:
    for place, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            operators = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            yield ast.Compare(node.left, operators, node.comparators)


def _bool_op(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for place in range(len(node.values)):
        rest = node.values[:place] + node.values[place + 1 :]
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return
    yield node.operand


def _binary(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
        return
    if isinstance(node.op, ast.BitOr):  # sets, masks, and the classes that an isinstance or except names
        yield node.left
        yield node.right
    elif type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)


def _augmented(node: ast.AugAssign) -> Iterator[ast.AST]:
    yield ast.Pass()
    if type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 2 + 1)


def _branch(node: ast.If | ast.While) -> Iterator[ast.AST]:
    """Taken where it is not, and not where it is."""
    if not isinstance(node.test, ast.Compare | ast.UnaryOp):  # those have mutants that say the same
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    if isinstance(node, ast.If):
        yield ast.If(ast.Constant(False), node.body, node.orelse)
        yield ast.If(ast.Constant(True), node.body, node.orelse)


def _choice(node: ast.IfExp) -> Iterator[ast.AST]:
    yield node.body
    yield node.orelse


def _returned(node: ast.Return) -> Iterator[ast.AST]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield ast.Return(ast.Constant(None))


def _dropped(node: ast.stmt) -> Iterator[ast.AST]:
    yield ast.Pass()


def _assigned(node: ast.Assign) -> Iterator[ast.AST]:
    """A name that is bound nowhere else would only raise NameError."""
    if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield ast.Pass()


def _looped(node: ast.Break | ast.Continue) -> Iterator[ast.AST]:
    yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    yield ast.Pass()


def _called(node: ast.Call) -> Iterator[ast.AST]:
    for place, argument in enumerate(node.args):
        if isinstance(argument, ast.Starred | ast.Constant | ast.JoinedStr | ast.Lambda):
            continue
        arguments: list[ast.expr] = [*node.args[:place], ast.Constant(None), *node.args[place + 1 :]]
        yield ast.Call(node.func, arguments, node.keywords)
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in CHECKS and keyword.arg not in TEXTS:
            yield ast.Call(node.func, node.args, node.keywords[:place] + node.keywords[place + 1 :])


def _filtered(node: ast.comprehension) -> Iterator[ast.AST]:
    for place in range(len(node.ifs)):
        yield ast.comprehension(node.target, node.iter, node.ifs[:place] + node.ifs[place + 1 :], node.is_async)


_MAKERS: Sequence[tuple[Any, Callable[[Any], Iterator[ast.AST]]]] = (
    (ast.Compare, _compare),
    (ast.BoolOp, _bool_op),
    (ast.UnaryOp, _unary),
    (ast.BinOp, _binary),
    (ast.AugAssign, _augmented),
    (ast.Constant, _constant),
    (ast.If, _branch),
    (ast.While, _branch),
    (ast.IfExp, _choice),
    (ast.Return, _returned),
    (ast.Expr, _dropped),
    (ast.Raise, _dropped),
    (ast.Delete, _dropped),
    (ast.Assign, _assigned),
    (ast.Break, _looped),
    (ast.Continue, _looped),
    (ast.Call, _called),
    (ast.comprehension, _filtered),
)
