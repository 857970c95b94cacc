"""Where a Python source can be changed by one mistake, and what each mistake is.

Left alone is what changes no behaviour that a test should hold: docstrings, annotations, decorators, assertions, the
words of errors, and the log; the very bounds of times, None for False, and numbers that are large and off by one.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LARGE = 16
"""A number from here on is changed to twice as much, rather than by one: nobody's limit is wrong by so little."""
_NOW = re.compile(r"\bnow\b|\b(monotonic|perf_counter|time)\(\)")
_LOG = {"_log", "structlog"}
_IN_ANY_ORDER = {"suppress"}
"""Calls whose arguments mean the same in any order."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one source: `text`, with `before` at byte `start` replaced by `after`."""

    path: str
    line: int
    last_line: int
    kind: str
    start: int
    before: str
    after: str
    of: str
    """The first line of the statement that is changed, by which the list of equivalent mutants knows it."""
    at_import: bool
    """Whether it is in what runs when the module is imported: constants, defaults and fields."""

    def apply(self, source: bytes) -> bytes:
        """The changed source."""
        end = self.start + len(self.before.encode())
        assert source[self.start : end] == self.before.encode()
        return source[: self.start] + self.after.encode() + source[end:]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {_short(self.before)}  ->  {_short(self.after)}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a source, in order."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def parses(source: bytes) -> bool:
    """Whether a source is Python."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._statement: ast.stmt | None = None
        self._functions = 0

    # -- statements --------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        before = self._statement
        if isinstance(node, ast.stmt):
            self._statement = node
        super().visit(node)
        self._statement = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = [one for one in node.body if not _is_remark(one)]
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._functions += 1
        if body and not isinstance(body[0], ast.Return | ast.Pass | ast.Raise):
            first = body[0]
            at = self._at(first)
            self._add(first, "early return", at, "", "return\n" + " " * first.col_offset)
        for one in body:
            self.visit(one)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for one in node.body:
            self.visit(one)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not _is_remark(node) and not _is_log(node.value):
            self._replace(node, "dropped", "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "dropped", "pass")
        if not (isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TYPE_CHECKING"):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "dropped", "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._replace(node, "dropped", "pass")
        elif not isinstance(node.value, ast.Constant) or node.value.value:
            self._replace(node, "returned", "return None")
            self.visit(node.value)
        elif node.value.value == "":
            self._replace(node, "returned", 'return "?"')
        else:  # None for False or 0 is the same to whoever asks
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "dropped", "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):  # a name is only not used any more
            self._replace(node, "dropped", "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "dropped", "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "dropped", "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        if not any(name in ast.unparse(node.test) for name in ("TYPE_CHECKING", "__name__")):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        for one in node.body:
            self.visit(one)

    # -- expressions -------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """The places of what is in one are not told before Python 3.12."""

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, "constant", str(not value))
        elif isinstance(value, int):
            self._replace(node, "constant", str(value + 1 if abs(value) < _LARGE else 2 * value))
        elif isinstance(value, float):
            self._replace(node, "constant", repr(2 * value if value else 1.0))

    def visit_Compare(self, node: ast.Compare) -> None:
        for table, kind in ((_COMPARISONS, "comparison"), (_OPPOSITES, "opposite")):
            for index, operator in enumerate(node.ops):
                if type(operator) in table and (kind == "opposite" or not self._is_of_time(node, operator)):
                    other = copy.deepcopy(node)
                    other.ops[index] = table[type(operator)]()
                    self._instead(node, kind, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._instead(node, "and, or", other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if all(isinstance(one, ast.BinOp | ast.Constant | ast.operator) for one in ast.walk(node)):
            self._replace(node, "constant", f"(2 * ({ast.unparse(node)}))")  # one number, however it is written
            return
        if type(node.op) in _OPERATORS:
            other = copy.deepcopy(node)
            other.op = _OPERATORS[type(node.op)]()
            self._instead(node, "arithmetic", other)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._instead(node, "sign" if isinstance(node.op, ast.USub) else "negation", node.operand)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if isinstance(node.func, ast.Name) and name in _CALLS:
            other = copy.deepcopy(node)
            other.func = ast.Name(_CALLS[name], ast.Load())
            self._instead(node, "extreme", other)
        elif (
            name not in _IN_ANY_ORDER
            and len(node.args) >= 2
            and not any(isinstance(one, ast.Starred) for one in node.args[:2])
        ):
            other = copy.deepcopy(node)
            other.args[:2] = [other.args[1], other.args[0]]
            if ast.unparse(other) != ast.unparse(node):
                self._instead(node, "swapped", other)
        self.generic_visit(node)

    def _is_of_time(self, node: ast.Compare, operator: ast.cmpop) -> bool:
        """Whether a bound is one of time, which never is exactly so long: with and without it, it is the same."""
        return type(operator) in _OPPOSITES and any(
            _NOW.search(ast.unparse(one)) for one in (node.left, *node.comparators)
        )

    # -- making them -------------------------------------------------------------------------------

    def _negate(self, test: ast.expr) -> None:
        removed = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        turned = isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) not in _OPPOSITES
        if not removed and not turned:  # else dropping the `not`, or the other comparison, is the same
            self._replace(test, "negated", f"(not ({ast.unparse(test)}))")

    def _instead(self, node: ast.expr, kind: str, other: ast.expr) -> None:
        self._replace(node, kind, f"({ast.unparse(ast.fix_missing_locations(other))})")

    def _replace(self, node: ast.stmt | ast.expr, kind: str, after: str) -> None:
        start, end = self._at(node), self._at(node, end=True)
        self._add(node, kind, start, self._source[start:end].decode(), after)

    def _add(self, node: ast.stmt | ast.expr, kind: str, start: int, before: str, after: str) -> None:
        assert self._statement is not None
        line = self._lines[self._statement.lineno - 1].decode().strip()
        last = node.lineno if kind == "early return" else node.end_lineno or node.lineno
        self.found.append(
            Mutant(self._path, node.lineno, last, kind, start, before, after, line, at_import=self._functions == 0)
        )

    def _at(self, node: ast.stmt | ast.expr, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        assert line is not None
        assert column is not None
        return self._starts[line - 1] + column


def _is_remark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_log(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in _LOG
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:67]}…"
