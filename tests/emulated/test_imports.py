"""What the quick commands must not load: each of these libraries takes longer than all of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.daemon import Commands

HEAVY = {
    "asyncio", "concurrent.futures", "cuda", "google.protobuf", "grpc", "jinja2", "lightkube", "matplotlib",
    "multiprocessing", "numpy", "perfetto", "prometheus_client", "pygments", "pynvml", "ray", "rich", "ssl",
    "structlog", "textual", "torch", "urllib.request",
}  # fmt: skip
OWN = {
    "runlist.daemon", "runlist.demo", "runlist.integrations", "runlist.policies", "runlist.scheduling", "runlist.sim",
    "runlist.top", "runlist.trace", "runlist.workloads",
}  # fmt: skip
"""Parts of ours that bring such libraries along, or that only the daemon needs."""


def _loaded(environment: dict[str, str], *words: str) -> set[str]:
    """Modules that a process loads, and the packages that they are in."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {".".join(name.split(".")[: end + 1]) for name in names for end in range(name.count(".") + 1)}


@pytest.mark.parametrize(
    "words", [("--version",), ("ps",), ("ps", "--json"), ("run", "--class", "batch", "--", "true")]
)
def test_quick_commands_load_nothing_heavy(commands: Commands, words: tuple[str, ...]) -> None:
    loaded = _loaded(dict(commands.environment), "-m", "runlist.cli", *words)
    assert "runlist.cli" in loaded
    assert not loaded & (HEAVY | OWN)


def test_the_package_itself_loads_nothing() -> None:
    loaded = _loaded(dict(os.environ), "-c", "import runlist")
    assert {name for name in loaded if name.startswith("runlist")} == {"runlist"}


def test_the_list_names_what_exists() -> None:
    """A name that was written wrong would forbid nothing."""
    package = Path(__file__).resolve().parents[2] / "src"
    missing = {name for name in OWN - {"runlist.integrations"} if not (package / name.replace(".", "/")).is_dir()}
    assert not missing
