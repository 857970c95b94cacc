"""What `runlist doctor` tries of the kernel plane: nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from runlist import interpreter
from runlist.errors import NotSupportedError
from runlist.planes.kernel import trial
from runlist.planes.nvidia.capture import CAPTURE
from tests.fixtures.kernel import needs_kernel


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    found: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return found


@needs_kernel
def test_the_programs_load_and_are_let_go_of(started: list[subprocess.Popen[bytes]]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    assert trial.run(CAPTURE).startswith("its programs load: ")
    assert [process.returncode for process in started] == [0]
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_loader_that_does_not_answer_is_ended(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(interpreter, "command", lambda *_: ["sleep", "600"])
    with pytest.raises(NotSupportedError, match="its loader does not answer"):
        trial.run(CAPTURE)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
