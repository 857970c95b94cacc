"""The daemon is a guest that stays: it loads nothing large that it never uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE = ("matplotlib", "perfetto", "rich", "ssl", "textual", "typer")


@pytest.mark.parametrize("module", ["runlist.daemon.__main__", "runlist.daemon.undo.keeper"])
def test_nothing_large_is_loaded(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({LARGE!r}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


def test_what_was_left_out_can_be_had_later() -> None:
    code = "import runlist.daemon.lean, rich.console, ssl; print(ssl.OPENSSL_VERSION)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip()
