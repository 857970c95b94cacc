"""The program that refuses requests, at its hook, on a kernel that asks BPF: Debian's, in a virtual machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runlist.planes.kernel import loading, watching
from runlist.planes.kernel.refusing import NEVER_ASKED
from runlist.planes.process.library import program
from tests.fixtures import guest

pytestmark = pytest.mark.timeout(guest.PATIENCE_S + 60)
DONE, NOT_A_DRIVERS = "", "ENOTTY"
"""What a file that answers everything says, and what /dev/null says, where nobody refuses."""


def answers(tmp_path: Path, options: str) -> Mapping[str, Any]:
    try:
        programs = [program(loading.OBJECT), program(watching.OBJECT)]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return guest.answers(tmp_path, programs, options)


@guest.needs_guest
def test_a_kernel_that_asks_bpf_refuses_what_the_map_forbids(tmp_path: Path) -> None:
    said = answers(tmp_path, "lsm=landlock,yama,bpf")
    assert said["slices"] == {
        "why not": "",
        "before": NOT_A_DRIVERS,
        "set": "EPERM",
        "get": NOT_A_DRIVERS,
        "behind a pointer": "EPERM",
        "told": ["SLICES", "SLICES"],
        "counted": 2,
        "exempt": NOT_A_DRIVERS,
        "let go of": NOT_A_DRIVERS,
    }
    assert said["gpus"] == {"given": NOT_A_DRIVERS, "other": "EPERM", "told": ["GPU"]}
    assert said["groups"] in (
        None,
        {
            "made": [DONE, DONE, "EPERM"],
            "channel": DONE,
            "told": ["GROUPS"],
            "without its first thread": [DONE, DONE, "EPERM"],
        },
    )
    assert said["why"] == {"missing": []}


@guest.needs_guest
def test_a_kernel_that_was_not_told_to_ask_says_so(tmp_path: Path) -> None:
    said = answers(tmp_path, "lsm=landlock,yama")
    assert said["slices"]["why not"] == NEVER_ASKED
    assert said["slices"]["set"] == NOT_A_DRIVERS
    assert said["gpus"]["other"] == NOT_A_DRIVERS


@guest.needs_guest
def test_lockdown_is_said_in_one_line(tmp_path: Path) -> None:
    """Programs may not read the kernel's memory then, and these do."""
    said = answers(tmp_path, "lsm=lockdown,bpf lockdown=confidentiality")
    assert "lockdown" in said["slices"]["error"]
    assert "lockdown" in said["why"]["error"]
