"""Starting a private daemon: what keeps it from starting leaves nothing behind in who asked."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.errors import RunlistError
from runlist.starting import start_private

PLANE: Any = SimpleNamespace(name="some", state_dir=lambda: None)


@pytest.mark.parametrize(
    ("mode", "why"), [(0o700, "daemon.log cannot be written"), (0o777, "is a folder of several users")]
)
def test_no_descriptor_is_left_where_none_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, why: str
) -> None:
    folder = tmp_path / "runlist"
    (folder / "daemon.log").mkdir(parents=True)
    folder.chmod(mode)
    monkeypatch.setenv("RUNLIST_SOCKET", str(folder / "daemon.sock"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RunlistError, match=why):
        start_private(PLANE)
    assert os.listdir("/proc/self/fd") == before
