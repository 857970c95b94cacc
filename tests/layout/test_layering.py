"""The one-way flow: which part of the package may import which, and what no source may contain."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "runlist"
MAX_LINES = 500

FLOW: dict[str, set[str]] = {
    "__init__": {"native", "tenant"},
    "errors": set(),
    "model": set(),
    "protocol": set(),
    "rm": {"errors", "model"},
    "wire": set(),
    "sizes": set(),
    "region": {"errors", "rm.layout"},
    "preload": {"errors"},
    "native": set(),
    "tenant": set(),
    "paths": {"errors", "rm.transport"},
    "policies": {"errors", "model"},
    "nvml": {"rm.transport", "emulated"},
    "usage": {"errors", "nvml", "rm"},
    "daemon": {
        "__init__",
        "errors",
        "model",
        "nvml",
        "paths",
        "policies",
        "preload",
        "region",
        "rm",
        "sizes",
        "tenant",
        "usage",
        "wire",
    },
    "client": {"errors", "paths", "wire", "rm.transport"},
    "columns": {"model", "sizes", "wire"},
    "top": {"client", "columns", "errors", "model", "wire"},
    "trace": {"errors", "nvml", "rm", "usage"},
    "doctor": {"errors", "rm", "native", "nvml", "preload", "client", "daemon.watch"},
    "emulated": {"errors", "rm.transport"},
    "workloads": {"tenant"},
    "sim": {"demo.statistics", "errors", "model", "policies"},
    "demo": {"client", "emulated", "errors", "nvml", "rm.transport", "workloads"},
}
"""What each part may import besides itself. `cli`, the top, may import all."""

PLUGINS = {f"policies/{name}" for name in ("cap", "deadline", "fair", "gpreempt", "parts", "priority", "slo")}
"""Built-in policies, and what they are made of: they see the model and their interface, as a user's own file does."""

STANDARD_ONLY = {
    "errors": set(),
    "model": set(),
    "rm": set(),
    "region": set(),
    "sizes": set(),
    "preload": set(),
    "policies": set(),
    "wire": {"msgspec"},
    "paths": set(),
    "tenant": set(),
}
"""Parts that use no library beyond Python's own, or only these: they are imported into every command."""


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _known_modules() -> set[str]:
    return {_module(path) for path in _sources()}


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name; `from package import module` names the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            assert node.module is not None
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in _known_modules() else node.module for name in submodules)


def _own_imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, below `runlist.`; the package itself is `__init__`."""
    names = {name for name in _imports(path) if name == "runlist" or name.startswith("runlist.")}
    return {name.removeprefix("runlist").removeprefix(".") or "__init__" for name in names}


@pytest.mark.parametrize("path", _sources(), ids=_module)
def test_imports_flow_one_way(path: Path) -> None:
    part = _part(path)
    if part == "cli":
        return
    allowed = FLOW[part] | {part}
    for name in _own_imports(path):
        assert any(name == one or name.startswith(f"{one}.") for one in allowed), f"{_module(path)} imports {name}"


@pytest.mark.parametrize("folder", sorted(PLUGINS))
def test_a_policy_sees_only_the_model(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        own = f"policies.{path.parent.name}"
        for name in _own_imports(path):
            seen = (own, "model.", "policies.parts.")
            assert name in {"model", "policies.interface"} or name.startswith(seen), f"{path}: {name}"


def test_every_policy_is_listed_here() -> None:
    folders = {f"policies/{path.parent.name}" for path in (PACKAGE / "policies").glob("*/__init__.py")}
    assert folders == PLUGINS


@pytest.mark.parametrize("path", [path for path in _sources() if _part(path) in STANDARD_ONLY], ids=_module)
def test_the_lower_parts_use_only_the_standard_library(path: Path) -> None:
    import sys

    allowed = set(sys.stdlib_module_names) | {"runlist", "__future__"} | STANDARD_ONLY[_part(path)]
    assert {name.partition(".")[0] for name in _imports(path)} <= allowed


@pytest.mark.parametrize("path", _sources(), ids=_module)
def test_nobody_imports_tests_or_what_stands_beside_the_package(path: Path) -> None:
    tops = {name.partition(".")[0] for name in _imports(path)}
    assert not tops & {"tests", "bench", "tools", "emulator", "conftest", "pytest", "hypothesis"}


def _texts() -> list[Path]:
    kept = [PACKAGE, *(ROOT / name for name in ("emulator", "native", "protocol", "bench", "tools", "tests", "docs"))]
    suffixes = {".py", ".cpp", ".h", ".hpp", ".inc", ".cu", ".md", ".txt", ".toml", ""}
    found = [path for folder in kept if folder.exists() for path in folder.rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in found if path.suffix in suffixes and "__pycache__" not in path.parts and path != _SELF]


_SELF = Path(__file__).resolve()
_HAND_WRITTEN = {".py", ".cpp", ".h", ".hpp", ".inc", ".cu"}


@pytest.mark.parametrize("path", _texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_grows_out_of_hand(path: Path) -> None:
    if path.suffix in _HAND_WRITTEN and "autogen" not in path.name:
        lines = len(path.read_text().splitlines())
        assert lines <= MAX_LINES, f"{lines} lines: split it"


@pytest.mark.parametrize("path", _texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_names_a_place_outside_the_repository(path: Path) -> None:
    text = path.read_text(errors="replace")
    for place in ("../shared", "shared/design", "shared/facts", "shared/probe", "/work/"):
        assert place not in text


@pytest.mark.parametrize(
    "path", [path for path in _texts() if path.suffix in _HAND_WRITTEN], ids=lambda path: path.name
)
def test_generated_files_say_so_in_their_name(path: Path) -> None:
    start = "\n".join(path.read_text().splitlines()[:5]).lower()
    says_generated = "do not edit" in start
    assert says_generated == ("autogen" in path.name)


def test_the_flow_names_only_parts_that_exist() -> None:
    parts = {_part(path) for path in _sources()}
    assert set(FLOW) | {"cli"} == parts


def test_a_command_is_a_module_whose_function_says_what_it_does() -> None:
    commands = sorted((PACKAGE / "cli").glob("*_command.py"))
    assert len(commands) >= 13
    for path in commands:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        (register,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "register"]
        inner = [node for node in register.body if isinstance(node, ast.FunctionDef)]
        assert inner, path
        assert all(ast.get_docstring(node) for node in inner), path
