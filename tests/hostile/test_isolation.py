"""Modules planted where a daemon is started: nothing is imported from there, not by it and not by what it starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from runlist import interpreter
from runlist.client import Client
from runlist.errors import RunlistError
from tests.fixtures.daemon import NOBODY, Commands, needs_root, wait_for

PROGRAM = Path(sys.executable).with_name("runlist")
MODULES = (
    "runlist.daemon.__main__", "runlist.daemon.undo.keeper", "runlist.planes.nvidia.plane",
    "runlist.planes.nvidia.discover", "runlist.planes.nvidia.census", "runlist.planes.nvidia.usage.nvml",
    "runlist.planes.nvidia.usage.switch_log", "runlist.policies.priority", "runlist.workloads.batch", "runlist.tenant",
)  # fmt: skip


@cache
def imported() -> set[str]:
    """The first parts of the names of all modules that are imported, and those that Python itself looks for."""
    code = f"import sys, runpy, {', '.join(MODULES)}; print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return {name.partition(".")[0] for name in names} - {"__main__"} | {"sitecustomize", "usercustomize", "cuda"}


@pytest.fixture
def planted(short_path: Path) -> Iterator[Path]:
    """A folder with a module of each name, as a file and as a package, that leaves a mark when it is imported."""
    folder = short_path / "planted"
    (folder / "marks").mkdir(parents=True)
    for name in imported():
        code = f"open({str(folder / 'marks' / name)!r}, 'w').close()\n"
        (folder / f"{name}.py").write_text(code)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text(code)
    yield folder
    shutil.rmtree(folder)


def marks(folder: Path) -> list[str]:
    return os.listdir(folder / "marks")


def started(commands: Commands, planted: Path, environment: Mapping[str, str]) -> Client:
    """A daemon that `runlist daemon` started in a folder, and its keeper, which was killed once."""
    words = [str(PROGRAM), "daemon"]
    process = subprocess.Popen(words, cwd=planted, env=dict(environment), stderr=subprocess.PIPE, text=True)
    commands._processes.append(process)
    wait_for(commands.served, "the daemon's socket")
    client = Client.open()
    first = client.status().keeper_pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: client.status().keeper_pid != first, "another keeper")
    for pid in (process.pid, client.status().keeper_pid):
        wait_for(lambda pid=pid: os.readlink(f"/proc/{pid}/cwd") == "/", "the working directory /")
    return client


def test_a_daemon_imports_nothing_from_where_it_is_started(commands: Commands, planted: Path) -> None:
    environment = {name: value for name, value in commands.environment.items() if name != "PYTHONPATH"}
    with started(commands, planted, environment) as client:
        client.use_policy("fair", {})
        assert marks(planted) == []


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_nor_from_where_pythonpath_says(planted: Path, owner: int) -> None:
    """The command itself is a program like any other: PYTHONPATH counts there, but not in what it starts."""
    if os.geteuid() == 0:
        os.chown(planted, owner, owner)
    environment = {**os.environ, "PYTHONPATH": f"{planted}::.", "HOME": str(planted)}
    for module in ("runlist.daemon", "runlist.daemon.undo.keeper", "runlist.workloads.batch"):
        words = interpreter.command(module, "--help")
        subprocess.run(
            words, cwd=planted, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60
        )
    assert marks(planted) == []


def test_a_private_daemon_and_a_workload_import_nothing_from_there(commands: Commands, planted: Path) -> None:
    environment = {name: value for name, value in commands.environment.items() if name != "PYTHONPATH"}
    words = [str(PROGRAM), "run", "--class", "batch", "--", "true"]
    assert subprocess.run(words, cwd=planted, env=environment, timeout=60, check=False).returncode == 0
    with Client.open() as client:
        assert marks(planted) == []
        client.stop()


@needs_root
def test_a_plane_is_not_imported_from_a_strangers_folder(tmp_path: Path, commands: Commands) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text("raise SystemExit('imported')")
    os.chown(tmp_path / "evil", NOBODY, NOBODY)
    os.chown(tmp_path, NOBODY, NOBODY)
    environment = {**commands.environment, "RUNLIST_DEVICE": "evil.plane", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        interpreter.command("runlist.daemon"),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "imported" in done.stderr) == (2, False)
    assert "No module named 'evil'" in done.stderr


@needs_root
@pytest.mark.parametrize("variable", ["RUNLIST_EMULATOR_BUILD", "RUNLIST_NATIVE_BUILD"])
def test_libraries_of_strangers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """They would be loaded with our rights."""
    from runlist import emulated
    from runlist.planes.process import library

    def look() -> object:
        return emulated.artefacts() if "EMULATOR" in variable else library.library()

    for name in ("librunlist.so", "libcuda.so.1", "libnvidia-ml.so.1", "runlist-emulated-gpu"):
        (tmp_path / name).touch()
    monkeypatch.setenv(variable, str(tmp_path))
    assert look()
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(RunlistError, match=f"{variable} is refused: {tmp_path} belongs to user {NOBODY}"):
        look()
