"""The one-way flow of the emulated GPU: which of its folders may include which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.layout.includes import circles, includes, rooms

EMULATOR = Path(__file__).resolve().parents[2] / "emulator"

FLOW: dict[str, dict[str, set[str]]] = {
    ".": {
        "shared": set(),
        "model": {"shared"},
        "device": {"model", "shared"},
        "cuda": {"model", "shared"},
        "nvml": {"shared"},
    },
}
"""By folder: which of the folders in it includes which others, no more and no less."""


@pytest.mark.parametrize("folder", FLOW)
def test_folders_include_what_the_table_says(folder: str) -> None:
    assert rooms(includes(EMULATOR / folder, EMULATOR), EMULATOR / folder) == FLOW[folder]


@pytest.mark.parametrize("folder", FLOW)
def test_the_flow_has_no_circles(folder: str) -> None:
    flow = {Path(room): {Path(other) for other in others} for room, others in FLOW[folder].items()}
    assert circles(flow) == []


def test_includes_are_written_from_the_emulators_folder() -> None:
    for path in EMULATOR.rglob("*.?pp"):
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert (EMULATOR / name).is_file(), f"{path.name}: {name}"
