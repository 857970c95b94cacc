"""Clients that share a GPU operation by operation: each function of the newest cuda.h that names a stream, an event or
an instantiated graph, or takes away what may be queued, is called beside what is queued, with a driver that is made of
that header and does nothing but say in which order it was called.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.native.guests import INCLUDE, OPTIONS, SHARED, SOURCES, Guests, compile_c, headers
from tests.native.test_operations import environment

HOOKS = Path(__file__).parents[2] / "native" / "hooks"
FORM = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
NAMES = re.compile(r"\b(CUstream|CUevent|CUgraphExec)\s+\w|\bCUlaunchConfig\b")
DECLARED = re.compile(r"CUresult\s+(cu\w+)\s*\(([^;{}]*)\)\s*;")
IMPLEMENTED = re.compile(r"CUDAAPI (cu\w+)\(")
OPERATION = re.compile(r"^OPERATION\((\w+), (\w+)\)", re.MULTILINE)
AT_ONCE = ("kAskStream", "kAskEvent", "kElapsed", "kMakeStream")
TAKES = ("kFlushOthers", "kUnload", "kEndContext", "kEndGreen")
GIVEN = {"CUstream": "stream", "CUevent": "event", "CUgraphExec": "EXEC", "CUfunction": "FUNCTION", "void**": "NULL",
         "const CUlaunchConfig*": "&config"}  # fmt: skip
"""What functions are called with, by the type; else a pointer to zeros, or zero."""

Declared = dict[str, list[tuple[str, str]]]


def declared(folder: Path) -> Declared:
    """Every function of the header: the types and names of what it is given."""
    source = folder / "header.c"
    source.write_text("#include <cuda.h>\n")
    text = compile_c(["-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", *headers(), str(source)]).out
    return {
        name: [split(one) for one in given.split(",") if one.strip() != "void"]
        for name, given in DECLARED.findall(text)
    }


def split(given: str) -> tuple[str, str]:
    kind, name, array = re.fullmatch(r"\s*(.+?)\s*(\w+)\s*(\[\w*\])?\s*", given).groups()  # type: ignore[union-attr]
    return re.sub(r"\s*\*\s*", "*", kind) + ("*" if array else ""), name


def stub(name: str, given: list[tuple[str, str]]) -> str:
    streams = [one for kind, one in given if kind == "CUstream"]
    streams += [f"({one} != NULL ? {one}->hStream : NULL)" for kind, one in given if kind == "const CUlaunchConfig*"]
    words = ", ".join(f"{kind} {one}" for kind, one in given) or "void"
    return f'CUresult {name}({words}) {{ return called("{name}", {streams[0] if streams else "NULL"}); }}\n'


def call(name: str, given: list[tuple[str, str]]) -> str:
    words = [GIVEN.get(kind) or (f"({kind})buffer" if kind.endswith("*") else f"({kind}){{0}}") for kind, _ in given]
    return f"static void call_{name}(void) {{ {name}({', '.join(words)}); }}\n"


def table(name: str, functions: list[str]) -> str:
    return (
        f"static const struct calls {name}[] = {{"
        + "".join(f'{{"{one}", call_{one}}},' for one in functions)
        + "{0}};\n"
    )


@pytest.fixture
def program(guests: Guests) -> Path:
    """The program, beside its driver."""
    folder = guests.folder / "order"
    folder.mkdir()
    functions = declared(folder)
    how = {name: word for word, name in OPERATION.findall((HOOKS / "operations.inc").read_text())}
    free = {
        name for group in tomllib.loads((HOOKS / "unqueued.toml").read_text()).values() for name in group["functions"]
    }
    own = [
        name for name, given in functions.items()
        if NAMES.search(", ".join(map(" ".join, given)))
        and FORM.sub("", name) not in free and how.get(name) not in AT_ONCE and name != "cuLaunchKernel"
    ]  # fmt: skip
    everyones = [name for name in functions if how.get(name) in TAKES]
    assert len(own) > 100
    assert len(everyones) > 50
    there = IMPLEMENTED.findall((SOURCES / "order_driver.c").read_text())
    (folder / "functions.h").write_text("".join(stub(*one) for one in functions.items() if one[0] not in there))
    called = "".join(call(name, functions[name]) for name in {*own, *everyones})
    (folder / "calls.h").write_text(called + table("own", own) + table("all", everyones))
    options = [*OPTIONS, "-Wno-unused-parameter", "-Wno-deprecated-declarations", "-Wno-pedantic", f"-I{folder}",
               "-D__CUDA_API_VERSION_INTERNAL", f"-I{INCLUDE}", *headers()]  # fmt: skip
    driver = folder / "libcuda.so.1"
    for words in (
        [str(SOURCES / "order_driver.c"), *SHARED, "-Wl,-soname,libcuda.so.1", "-o", str(driver)],
        [str(SOURCES / "order.c"), str(driver), "-ldl", "-o", str(folder / "order")],
    ):
        done = compile_c([*options, *words])
        assert done.code == 0, done.err[-3000:]
    return folder / "order"


@pytest.mark.skipif(ON_NVIDIA, reason="has a driver of its own")
def test_no_function_comes_before_what_is_queued(program: Path, guests: Guests) -> None:
    env = environment(guests, LD_LIBRARY_PATH=str(program.parent))
    done = guests.run(str(program), env=env)
    assert (done.code, done.err, done.lines) == (0, "", [])
