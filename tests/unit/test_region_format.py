"""That the daemon and the library agree on every byte of a region."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from runlist.planes.process.region import format as written
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, NO_LIMIT, SLOT, SLOTS_AT, USE
from runlist.planes.process.region.reading import is_settled
from runlist.structure import Structure
from tests.fixtures.compiler import CXX, compiler

NATIVE = Path(__file__).resolve().parents[2] / "native"
RECORDS = {"Header": HEADER, "Device": DEVICE, "Slot": SLOT, "Use": USE}
NUMBERS = ("kMagic", "kVersion", "kDevices", "kSlots", "kNoLimit", "kFileBytes")
SPLIT = ("_value", "_check")
"""A limit is one field there, and two here."""


def expression(record: str, name: str) -> str:
    for half in SPLIT:
        if name.endswith(half):
            return f"offsetof({record}, {name.removesuffix(half)}) + offsetof(Limit, {half[1:]})"
    return f"offsetof({record}, {name})"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a compiler makes of the header, by name."""
    asked = {f"{record}.{name}": expression(record, name) for record, of in RECORDS.items() for name in of.names}
    asked |= {f"sizeof {record}": f"sizeof({record})" for record in RECORDS}
    asked |= {
        name: name
        for name in (
            "kMagic",
            "kVersion",
            "kDevices",
            "kSlots",
            "kNoLimit",
            "kFileBytes",
            "kMemory",
            "kQueries",
            "kCap",
        )
    }
    asked |= {name: f"std::uint64_t(SlotState::{name})" for name in ("kFree", "kClaimed", "kForeign", "kReaped")}
    lines = [f'tell("{name}", {what});' for name, what in asked.items()]
    source = tmp_path_factory.mktemp("layout") / "layout.cpp"
    source.write_text(
        '#include <cstdio>\n#include "region/layout.hpp"\nusing namespace runlist::region;\n'
        'void tell(const char* name, unsigned long long number) { std::printf("%s %llu\\n", name, number); }\n'
        "int main() {\n" + "\n".join(lines) + "\n}\n"
    )
    program = source.with_suffix("")
    folders = [f"-I{NATIVE}", f"-I{NATIVE.parent}"]
    words = [*compiler(*CXX), "-std=c++20", "-Wno-invalid-offsetof", *folders, str(source), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in (line.rsplit(" ", 1) for line in told.splitlines())}


@pytest.mark.parametrize(("record", "ours"), RECORDS.items(), ids=list(RECORDS))
def test_every_field_lies_where_the_compiler_puts_it(compiled: dict[str, int], record: str, ours: Structure) -> None:
    assert {name: compiled[f"{record}.{name}"] for name in ours.names} == ours.offsets
    assert compiled[f"sizeof {record}"] == ours.size


def test_the_numbers_are_the_same(compiled: dict[str, int]) -> None:
    assert {
        name: compiled[name] for name in ("kMagic", "kVersion", "kDevices", "kSlots", "kNoLimit", "kFileBytes")
    } == {
        "kMagic": written.MAGIC,
        "kVersion": written.VERSION,
        "kDevices": written.DEVICES,
        "kSlots": written.SLOTS,
        "kNoLimit": written.NO_LIMIT,
        "kFileBytes": written.FILE_BYTES,
    }
    for name in written.SlotState:
        assert compiled[f"k{name.name.capitalize()}"] == name
    for bit in written.Enforced:
        assert compiled[f"k{(bit.name or '').capitalize()}"] == bit


@pytest.mark.parametrize(
    ("value", "check", "settled"),
    [(0, 0, True), (5, NO_LIMIT ^ 5, True), (0, NO_LIMIT, True), (5, 0, False), (0, 5, False), (5, 5, False)],
)
@pytest.mark.parametrize("place", [HEADER.offsets["cap_value"], DEVICES_AT + DEVICE.size + DEVICE.offsets["cap_value"]])
def test_a_limit_is_settled_where_its_words_belong_together(place: int, value: int, check: int, settled: bool) -> None:
    head = bytearray(SLOTS_AT)
    head[place : place + 16] = struct.pack("<2Q", value, check)
    assert is_settled(bytes(head)) is settled
