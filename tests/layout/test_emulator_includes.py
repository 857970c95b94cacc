"""The one-way flow of the emulated GPU: which of its folders may include which, and what its headers promise."""

from __future__ import annotations

import re
from pathlib import Path

from tests.layout.includes import circles, includes, rooms, units

EMULATOR = Path(__file__).resolve().parents[2] / "emulator"

FLOW: dict[str, dict[str, set[str]]] = {
    ".": {
        "shared": set(),
        "model": {"shared"},
        "device": {"model", "shared"},
        "cuda": {"model", "shared"},
        "nvml": {"shared"},
    },
    "device": {
        "memory": set(),
        "log": {"memory"},
        "gpu": {"log", "memory"},
        "rm": {"gpu"},
        "process": {"gpu", "memory", "rm"},
        "server": {"process", "rm"},
        "main": {"server"},
    },
    "cuda": {
        "driver": set(),
        "execution": {"driver"},
        "memory": {"driver", "execution"},
        "kernel": {"execution", "memory"},
        "graph": {"driver", "execution", "kernel", "memory"},
        "context": {"driver", "execution", "kernel", "memory"},
        "entry": {"context", "driver"},
    },
}
"""By folder: which of the folders in it includes which others, no more and no less."""

ENTRY_POINT = re.compile(r"^CUresult CUDAAPI (cu\w+)\(", re.MULTILINE)
CALL = re.compile(r"\b(cu[A-Z]\w+)\(")
# At the beginning of a line, as clang-format leaves what is not in a class or a function.
DECLARATION = re.compile(
    r"^(?!using|inline|struct|class|template)[\w:][\w:<>,&* ]*?(?<!operator)\b(\w+)\([^;{}]*\) *(?:const)?;",
    re.MULTILINE,
)
FUNCTION = re.compile(r"^[\w:][\w:<>,&* ]*?\b(\w+)\([^;{}]*\) *(?:const *)?\{", re.MULTILINE)
CLASS = re.compile(r"^ *(?:struct|class) (\w+)(?: \w+)*(?: : [^{;]+)? \{", re.MULTILINE)
MEMBER = re.compile(r"^(?:[\w:][\w:<>,&* ]*?)?\b(\w+)::~?\w+\([^;{}]*\)[^;{}]*\{", re.MULTILINE)


def sources(suffix: str) -> list[tuple[Path, str]]:
    return [(path, path.read_text()) for path in sorted(EMULATOR.rglob(f"*{suffix}"))]


def unit(path: Path) -> Path:
    return path.with_suffix("")


def test_folders_include_what_the_table_says() -> None:
    assert {folder: rooms(includes(EMULATOR / folder, EMULATOR), EMULATOR / folder) for folder in FLOW} == FLOW


def test_the_flow_has_no_circles() -> None:
    flows = [{Path(room): {Path(other) for other in others} for room, others in flow.items()} for flow in FLOW.values()]
    assert [circle for flow in flows for circle in circles(flow)] == []


def test_units_need_one_another_in_one_direction() -> None:
    """A unit needs those whose headers it includes, and those whose entry points (cu…) it calls."""
    needs = units(includes(EMULATOR, EMULATOR))
    owners = {name: unit(path) for path, text in sources(".cpp") for name in ENTRY_POINT.findall(text)}
    for path, text in sources(".cpp"):
        needs[unit(path)] |= {owners[name] for name in CALL.findall(text) if name in owners} - {unit(path)}
    assert len(owners) > 100
    assert circles(needs) == []


def test_a_header_declares_what_its_own_source_defines() -> None:
    defined = {unit(path): set(FUNCTION.findall(text)) for path, text in sources(".cpp")}
    declared = {path: set(DECLARATION.findall(text)) for path, text in sources(".hpp") if path.name != "exports.hpp"}
    assert sum(map(len, declared.values())) > 50
    wrong = {path.name: undefined for path, names in declared.items()
             if (undefined := names - defined.get(unit(path), set()))}  # fmt: skip
    assert wrong == {}


def test_a_source_defines_members_of_its_own_headers_classes() -> None:
    classes = {unit(path): set(CLASS.findall(text)) for path, text in sources(".hpp")}
    members = {path: set(MEMBER.findall(text)) for path, text in sources(".cpp")}
    assert sum(map(len, members.values())) > 10
    wrong = {}
    for path, names in members.items():
        if foreign := names - classes.get(unit(path), set()) - set(CLASS.findall(path.read_text())):
            wrong[path.name] = foreign
    assert wrong == {}


def test_includes_are_written_from_the_emulators_folder() -> None:
    wrong = []
    for path in EMULATOR.rglob("*.?pp"):
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            root = EMULATOR.parent if name.startswith("protocol/") else EMULATOR
            if not (root / name).is_file():
                wrong.append(f"{path.name}: {name}")
    assert wrong == []
