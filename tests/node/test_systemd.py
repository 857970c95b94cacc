"""The units by systemd's own checks, which need no systemd that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runlist.integrations.systemd import units
from tests.fixtures.daemon import NOBODY, ROOT, Commands, Worker, needs_root, wait_for
from tests.fixtures.node import needs_programs, program

pytestmark = needs_programs("systemd-analyze")

SERVICE = ROOT / "deploy" / "systemd" / "runlist.service"
MOST_EXPOSED = 4.0
"""Of 10, by systemd's count; a service without any restriction has 9.6."""


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"XDG_RUNTIME_DIR": "/run", **os.environ}  # a user's units need one to be read at all
    command = [program("systemd-analyze") or "", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("words", [[], ["--policy", "fair", "--rules", '/etc/my "rules" 100%$x.toml']])
def test_the_units_are_without_fault(user: bool, words: list[str], tmp_path: Path) -> None:
    done = units.install(tmp_path, units.contents(user, units.program(), words, None))
    checked = analyze("verify", "--man=no", *(["--user"] if user else []), *(str(one.path) for one in done))
    said = [line for line in checked.stderr.splitlines() if "runlist" in line]
    assert (checked.returncode, said) == (0, [])


def test_a_fault_would_be_seen(tmp_path: Path) -> None:
    """As the test above asks."""
    text = units.contents(False, "/nonexistent/runlist", [], None)
    done = units.install(tmp_path, text)
    assert analyze("verify", "--man=no", *(str(one.path) for one in done)).returncode != 0


def test_the_service_may_little_else(tmp_path: Path) -> None:
    done = units.install(tmp_path, units.contents(False, units.program(), [], None))
    checked = analyze("security", "--offline=true", "--no-pager", str(done[0].path))
    level = re.search(r"Overall exposure level for runlist.service: ([0-9.]+)", checked.stdout)
    assert level is not None, checked
    assert float(level[1]) <= MOST_EXPOSED


@needs_root
@needs_programs("setpriv")
def test_its_capabilities_are_enough(commands: Commands, tmp_path: Path) -> None:
    """A daemon with those of the unit alone manages another user's process, and puts it back. The emulated GPU asks for
    no capability, so those that NVIDIA's driver asks for are not tried here.
    """
    (line,) = [line for line in SERVICE.read_text().splitlines() if line.startswith("CapabilityBoundingSet=")]
    kept = [word.removeprefix("CAP_").lower() for word in line.partition("=")[2].split()]
    bound = ",".join(["-all", *(f"+{word}" for word in kept)])
    become = [program("setpriv") or "", f"--bounding-set={bound}", f"--inh-caps={bound}", "--no-new-privs"]
    words = [*become, sys.executable, "-m", "runlist.cli", "daemon"]
    with subprocess.Popen(words, env=commands.environment, cwd="/", stderr=subprocess.DEVNULL) as process:
        try:
            _manage(commands, process.pid, len(kept), tmp_path)
        finally:
            process.terminate()
    assert process.returncode == 0


def _manage(commands: Commands, daemon: int, capabilities: int, tmp_path: Path) -> None:
    wait_for(commands.served, "the daemon")
    status = Path(f"/proc/{daemon}/status").read_text()
    assert int(re.findall(r"CapEff:\s*(\w+)", status)[0], 16).bit_count() == capabilities
    worker = Worker(commands.environment, tmp_path)
    try:
        worker.do(f"setuid {NOBODY}")
        commands.ok("attach", str(worker.pid), "--class", "batch")
        assert [task["user"] for task in commands.json("ps")] == [NOBODY]
        worker.wait_for_progress()
        commands.ok("suspend", str(worker.pid))
        worker.assert_stopped()
        commands.ok("release", "--all")
        worker.wait_for_progress()
        assert worker.quit()
    finally:
        worker.kill()
