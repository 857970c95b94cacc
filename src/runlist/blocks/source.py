"""Kernels in a text of CUDA C++: which there are, and the same text with kernels that take logical blocks in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runlist.errors import UsageError

_ATTRIBUTES = {"__launch_bounds__", "__attribute__", "__align__", "__cluster_dims__", "alignas", "__maxnreg__"}
_SKIPPED = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*\#(?:\\\n|[^\n])*", re.MULTILINE)
_WARP = re.compile(r"\b(?:__\w+_sync|__syncwarp|__syncthreads_(?:and|or|count)|tiled_partition|coalesced_threads)\b")
_GRID = re.compile(r"\b(?:this_grid|grid_group|this_cluster|cluster_group|__cluster_dims__)\b")
_PLACE = re.compile(r"\b(?:blockIdx|gridDim)\b")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel: its type, without `const` and the like, as words with one space between them."""

    type: str
    name: str

    @property
    def pointer(self) -> bool:
        return self.type.endswith("*")


RUN_PARAMETERS = (
    Parameter("unsigned long long *", "runlist_next"),
    Parameter("unsigned *", "runlist_halted"),
    Parameter("unsigned long long *", "runlist_stop"),
    Parameter("unsigned", "runlist_x"),
    Parameter("unsigned", "runlist_y"),
    Parameter("unsigned", "runlist_z"),
)
"""What `RUNLIST_RUN_PARAMETERS` of blocks.cuh stands for."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One definition of a kernel; the places are offsets into its text."""

    name: str
    parameters: tuple[Parameter, ...]
    begin: int
    """Of its first word, such as `extern`."""
    keyword: int
    named: int
    """Of its name."""
    opened: int
    """Of the parenthesis of its parameters, as `closed`."""
    closed: int
    body: int
    """Of its brace."""
    end: int
    """Behind the brace that ends it."""


def kernels(text: str) -> list[Kernel]:
    """The kernels that a text defines, in order. Raises UsageError, with a line, where one cannot be read."""
    code = _code(text)
    found = []
    for keyword in re.finditer(r"\b__global__\b", code):
        kernel = _kernel(text, code, keyword)
        if kernel is not None:
            found.append(kernel)
    return found


def parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """Of a kernel, with those that blocks.cuh's macro stands for in its list."""
    listed: list[Parameter] = []
    for each in kernel.parameters:
        listed += RUN_PARAMETERS if each.name == "RUNLIST_RUN_PARAMETERS" else (each,)
    return tuple(listed)


def shared_arrays(text: str) -> list[tuple[str, str]]:
    """The arrays of dynamic shared memory that a text declares: type and name, each once."""
    declared = re.findall(
        r"\bextern\s+(?:volatile\s+)?__shared__\s+((?:__align__\s*\([^)]*\)\s*)?[\w:\s]+?)\s*\b(\w+)\s*\[\s*\]",
        _code(text),
    )
    return list(dict.fromkeys((" ".join(kind.split()), name) for kind, name in declared))


def resumable(text: str, names: Sequence[str] | None = None, label: str = "kernel.cu") -> str:
    """The text with the named kernels (default: all) made resumable. They keep their names and have the parameters of
    `blocks.cuh`'s Run behind their own. Lines keep their numbers, for a compiler's messages.

    Raises UsageError where a kernel cannot be stopped between blocks; the message names the line, and what to do.
    """
    code = _code(text)
    known = kernels(text)
    wanted = [each for each in known if names is None or each.name in names]
    if missing := sorted(set(names or ()) - {each.name for each in known}):
        raise UsageError(f"{label} defines no kernel {missing[0]}")
    if not wanted:
        raise UsageError(f"{label} defines no kernel")
    _check_helpers(text, code, known, label)
    pieces, place = [], 0
    for kernel in wanted:
        _check(text, code, kernel, label)
        pieces += [text[place : kernel.begin], *_rewritten(text, code, kernel)]
        place = kernel.end
    return _with_header("".join([*pieces, text[place:]]))


def _kernel(text: str, code: str, keyword: re.Match[str]) -> Kernel | None:
    """The kernel whose `__global__` this is; nothing for a declaration without a body."""
    place = keyword.end()
    while True:
        called = re.compile(r"(\w+)\s*\(").search(code, place)
        if called is None or re.search(r"[;{}]", code[place : called.start()]):
            raise UsageError(f"line {_line(text, keyword.start())}: no name of a kernel follows __global__")
        opened = called.end() - 1
        closed = _closing(text, code, opened)
        if called[1] not in _ATTRIBUTES:
            break
        place = closed + 1
    after = re.compile(r"\s*(.)", re.DOTALL).match(code, closed + 1)
    if after is None or after[1] != "{":
        return None
    body = after.start(1)
    earlier = max((code.rfind(each, 0, keyword.start()) for each in ";{}"), default=-1)
    words = code[earlier + 1 : keyword.start()]
    begin = earlier + 1 + len(words) - len(words.lstrip())
    return Kernel(
        called[1],
        tuple(_parameters(code[opened + 1 : closed])),
        begin,
        keyword.start(),
        called.start(),
        opened,
        closed,
        body,
        _closing(text, code, body) + 1,
    )


def _parameters(words: str) -> Iterator[Parameter]:
    for word in _split(words):
        one = re.sub(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b", " ", word)
        named = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", one)
        assert named is not None
        kind = one[: named.start()]
        yield Parameter(" ".join(kind.replace("*", " * ").split()) + (" *" if named[2] else ""), named[1])


def _split(words: str) -> Iterator[str]:
    """What commas part that are in no parenthesis of any kind."""
    depth, begin = 0, 0
    for place, letter in enumerate(words):
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            yield words[begin:place]
            begin = place + 1
    if words[begin:].strip() not in {"", "void"}:
        yield words[begin:]


def _rewritten(text: str, code: str, kernel: Kernel) -> Iterator[str]:
    """The kernel's body as a function of its block, and behind that, in the same line, the kernel that calls it."""
    given = text[kernel.opened + 1 : kernel.closed] if kernel.parameters else ""
    behind = f", {given}" if given else ""
    plain = re.sub(r"\b__grid_constant__\b", lambda word: " " * len(word[0]), behind)
    lines = "\n" * text.count("\n", kernel.begin, kernel.opened)
    yield f"{lines}static __device__ __forceinline__ void {kernel.name}__block("
    yield f"const uint3 blockIdx, const dim3 gridDim{plain})"
    yield text[kernel.closed + 1 : kernel.end]
    attributes = " ".join(re.sub(r"\b(?:static|inline)\b", "", code[kernel.keyword : kernel.named]).split())
    parameters = " ".join(code[kernel.opened + 1 : kernel.closed].split()) if kernel.parameters else ""
    called = "".join(f", {each.name}" for each in kernel.parameters)
    yield (
        f' extern "C" {attributes} {kernel.name}({parameters}{", " if parameters else ""}RUNLIST_RUN_PARAMETERS) '
        f"{{ runlist::blocks::each(RUNLIST_RUN, [&](const uint3 runlist_block, const dim3 runlist_grid) "
        f"{{ {kernel.name}__block(runlist_block, runlist_grid{called}); }}); }}"
    )


def _with_header(text: str) -> str:
    """With the header behind what it includes itself, whose barriers stay as they are."""
    last = max(
        (found.end() for found in re.finditer(r"^[ \t]*#[ \t]*include\b[^\n]*\n?", text, re.MULTILINE)), default=0
    )
    line = text.count("\n", 0, last) + 1
    return (
        f'{text[:last]}#include "blocks.cuh"\n#define __syncthreads() runlist::blocks::barrier()\n'
        f"#line {line}\n{text[last:]}"
    )


def _check(text: str, code: str, kernel: Kernel, label: str) -> None:
    """Refuse what would not do the same, or would hang."""
    words = code[kernel.begin : kernel.end]
    body = code[kernel.body : kernel.end]
    line = f"{label}, line {_line(text, kernel.keyword)}: kernel {kernel.name}"
    if re.search(r"\btemplate\b", code[kernel.begin : kernel.keyword]):
        raise UsageError(
            f"{line} is a template: make an instance of it a kernel of its own, or call blocks::each in it"
        )
    if found := _GRID.search(words):
        raise UsageError(f"{line} uses {found[0]}, and so waits for other blocks, which may not have begun")
    if re.search(r"%n?ctaid", text[kernel.body : kernel.end]):
        raise UsageError(f"{line} reads the physical block in assembler: use blockIdx and gridDim")
    if re.search(r"\breturn\b", body) and (found := _WARP.search(body)):
        raise UsageError(
            f"{line} returns early and uses {found[0]}, which would wait for ever: put the rest under an if"
        )


def _check_helpers(text: str, code: str, known: Sequence[Kernel], label: str) -> None:
    """Functions that the kernels call have only the physical blockIdx."""
    blank = list(code)
    for kernel in known:
        blank[kernel.begin : kernel.end] = " " * (kernel.end - kernel.begin)
    if found := _PLACE.search("".join(blank)):
        line = _line(text, found.start())
        raise UsageError(f"{label}, line {line}: a function that is no kernel reads {found[0]}: make it a parameter")


def _closing(text: str, code: str, place: int) -> int:
    opened = code[place]
    closed = {"(": ")", "{": "}"}[opened]
    depth = 0
    for found in re.compile(f"[{re.escape(opened + closed)}]").finditer(code, place):
        depth += 1 if found[0] == opened else -1
        if depth == 0:
            return found.start()
    raise UsageError(f"line {_line(text, place)}: nothing closes this {opened}")


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _code(text: str) -> str:
    """The text with comments, strings and directives as blanks, so that places and lines stay. What a macro says is not
    looked at: it is in the kernel that uses it.
    """

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return _DIRECTIVE.sub(blank, _SKIPPED.sub(blank, text))
