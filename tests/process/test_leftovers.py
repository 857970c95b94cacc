"""What the suite does with processes that a file of tests leaves on the session's emulated GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from runlist.protocol import environment_autogen as names
from tests.fixtures.leftovers import end_all


def sleeper(directory: Path, seconds: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", seconds], env={**os.environ, names.EMULATED_GPU: str(directory)})


def test_who_is_left_is_named_and_killed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with sleeper(tmp_path, "1000") as left, sleeper(tmp_path / "other", "1000") as elsewhere:
        try:
            assert end_all(tmp_path, patience_s=0.1) == [f"{left.pid}: sleep 1000"]
            assert left.wait(60) < 0
            assert elsewhere.poll() is None
        finally:
            left.kill()
            elsewhere.kill()


def test_who_ends_in_time_is_no_matter(tmp_path: Path) -> None:
    with sleeper(tmp_path, "0.3") as ending:
        assert end_all(tmp_path) == []
        assert ending.wait(60) == 0
