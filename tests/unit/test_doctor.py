"""`runlist doctor`: what it makes of checks that fail, and its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runlist import doctor, paths
from runlist.client import Client
from runlist.errors import ExitCode, NoPermissionError, NotSupportedError, RunlistError
from runlist.planes.interface import GpuInfo, Limited
from runlist.planes.nvidia import checks, nvml, switch_log
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import EmulatedDriver
from runlist.planes.registry import choose_plane
from tests.fixtures.daemon import NOBODY, needs_root, wait_for
from tests.fixtures.fake_rm import FakeFile, FakeRm

FINE, LIMITED = "", Limited("only by half")


@pytest.mark.parametrize(
    ("outcomes", "states", "code"),
    [
        ([FINE, LIMITED], ["ok", "warn"], ExitCode.DONE),
        ([FINE, NoPermissionError("no right")], ["ok", "fail"], ExitCode.NO_PERMISSION),
        ([NotSupportedError("no driver"), NoPermissionError("no right")], ["fail", "fail"], ExitCode.NOT_SUPPORTED),
        ([NoPermissionError("no right"), NotSupportedError("no driver")], ["fail", "fail"], ExitCode.NO_PERMISSION),
        ([RunlistError("it does not answer"), FINE], ["fail", "ok"], ExitCode.NOT_SUPPORTED),
        ([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FINE], ["fail", "ok"], ExitCode.NOT_SUPPORTED),
        ([PermissionError(errno.EPERM, os.strerror(errno.EPERM)), LIMITED], ["fail", "warn"], ExitCode.NO_PERMISSION),
    ],
)
def test_the_first_failure_gives_the_exit_code_and_all_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str | Exception], states: list[str], code: ExitCode
) -> None:
    def check(outcome: str | Exception) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    checks = [(f"check {number}", lambda outcome=outcome: check(outcome)) for number, outcome in enumerate(outcomes)]
    monkeypatch.setattr(doctor, "choose_plane", lambda device: None)
    monkeypatch.setattr(doctor, "_checks", lambda plane: iter(checks))
    findings, found = doctor.examine(None)
    assert [finding.state for finding in findings] == states
    assert found == code
    assert all("\n" not in finding.detail for finding in findings)


# -- of NVIDIA's driver ----------------------------------------------------------------------------


_HIDDEN = "the driver's log names others' processes to CAP_SYS_ADMIN alone: shares and caps count none of their use"


class Nvidia:
    """A driver in memory, and an NVML that says what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rm = FakeRm()
        self.files: list[FakeFile] = []
        self.version, self.names, self.limits, self.nice = "580.159.04", ["H200", "H100", "H200"], False, True
        monkeypatch.setattr(nvml, "session", lambda driver: contextlib.nullcontext())
        monkeypatch.setattr(nvml, "driver_version", lambda: self.version)
        monkeypatch.setattr(nvml, "gpus", lambda: [GpuInfo("GPU-0", name, 1, 0) for name in self.names])
        monkeypatch.setattr(nvml, "memory_limits_supported", lambda cgroup: self.limits)
        monkeypatch.setattr(checks, "capable", lambda capability: self.nice and capability == 23)
        monkeypatch.setattr(switch_log, "capable", lambda capability: True)
        self.rm.open = self.open  # type: ignore[method-assign]

    def open(self) -> FakeFile:
        self.files.append(FakeFile(self.rm))
        return self.files[-1]

    def found(self) -> dict[str, str | Exception]:
        """What each check says, or what it raises."""
        said: dict[str, str | Exception] = {}
        for name, check in NvidiaPlane(self.rm).checks():
            try:
                said[name] = check()
            except Exception as error:
                said[name] = error
        return said


def test_a_driver_that_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = Nvidia(monkeypatch)
    assert nvidia.found() == {
        "device": "fake: the driver answers",
        "GPUs": "3 × H100, H200, driver 580.159.04",
        "privileged controls": "interleave may be set",
        "use of the GPU": "every turn of the processes that can be managed is in the driver's log",
        "memory limits": "by the driver: not supported (driver 580.159.04); librunlist.so keeps them",
    }
    assert [(file.clients, file.closed) for file in nvidia.files] == [({}, 1)] * 2
    nvidia.limits = True
    assert nvidia.found()["memory limits"] == "by the driver itself, for a daemon run by root (driver 580.159.04)"


@pytest.mark.parametrize(
    ("version", "known"),
    [("550.54", True), ("550.0", True), ("551-rc1", True), ("551.2-rc1", True), ("549.99.1", False), ("90.1", False)],
)
def test_a_driver_that_nobody_read_is_a_warning(monkeypatch: pytest.MonkeyPatch, version: str, known: bool) -> None:
    nvidia = Nvidia(monkeypatch)
    nvidia.version = version
    said = nvidia.found()["GPUs"]
    assert isinstance(said, str) is known
    assert version in str(said)
    if isinstance(said, Limited):
        assert "older than 550" in str(said)


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = Nvidia(monkeypatch)
    nvidia.names, nvidia.nice = [], False
    said = nvidia.found()
    assert isinstance(said["GPUs"], NotSupportedError)
    assert isinstance(said["privileged controls"], Limited)
    assert str(said["privileged controls"]).startswith("interleave cannot be set without root or CAP_SYS_NICE")
    monkeypatch.setattr(switch_log, "capable", lambda capability: capability == 19)
    said = nvidia.found()
    assert isinstance(said["use of the GPU"], Limited)
    assert str(said["use of the GPU"]) == _HIDDEN


def test_of_a_driver_that_is_not_there_nothing_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = Nvidia(monkeypatch)

    def missing() -> FakeFile:
        raise NotSupportedError("no driver")

    nvidia.rm.open = missing  # type: ignore[method-assign]
    said = nvidia.found()
    assert str(said["use of the GPU"]) == str(said["device"]) == "no driver"
    plane = NvidiaPlane(nvidia.rm)
    lending = dict(doctor._checks(plane))["lending"]
    with pytest.raises(Limited, match="cannot be tried: no driver"):
        lending()


@needs_root
def test_a_systems_daemon_that_is_for_others_keeps_nobody_from_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    systems = tmp_path / "systems"
    systems.mkdir(mode=0o700)
    monkeypatch.setattr(paths, "SYSTEM_DIR", systems)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    plane = choose_plane("nvidia")
    os.seteuid(NOBODY)
    try:
        with pytest.raises(Limited, match="membership of its group, or have one of your own by `runlist run`"):
            doctor._daemon(plane)
        with pytest.raises(NoPermissionError, match="no right to use the daemon's socket"):
            Client.open(device="nvidia")
        monkeypatch.setenv("RUNLIST_SOCKET", str(systems / "daemon.sock"))  # there one cannot have one's own
        with pytest.raises(NoPermissionError, match=r"of its group$"):
            doctor._daemon(plane)
    finally:
        os.seteuid(0)


@needs_root
@pytest.mark.parametrize(("kept", "whole"), [("+sys_ptrace", False), ("+sys_ptrace,+sys_admin", True), ("+kill", True)])
def test_root_in_a_container_may_not_be_told_what_others_use(kept: str, whole: bool) -> None:
    """Who cannot manage them need not know."""
    code = "from runlist.planes.nvidia.switch_log import hides_others\nprint(hides_others())\n"
    few = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all"]
    done = subprocess.run([*few, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ("\n" if whole else f"{_HIDDEN}\n")


@needs_root
@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("+sys_ptrace,+dac_read_search", "processes of every user can be attached"),
        ("+sys_ptrace", "those of others need CAP_DAC_READ_SEARCH, too"),
    ],
)
def test_root_in_a_container_may_lack_what_it_takes_to_look_into_others(kept: str, said: str) -> None:
    """Neither does what a list of rights alone says: whether descriptors of another user's process can be listed."""
    code = (
        "import os, sys\nfrom runlist import doctor\n"
        "try:\n    print(doctor._ptrace())\nexcept Exception as error:\n    print(error)\n"
        "try:\n    os.listdir(f'/proc/{sys.argv[1]}/fd')\n    print('open')\n"
        "except PermissionError:\n    print('closed')\n"
    )
    other = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "60"])
    try:
        wait_for(lambda: b"sleep" in Path(f"/proc/{other.pid}/comm").read_bytes())
        few = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all"]
        words = [*few, sys.executable, "-c", code, str(other.pid)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    finally:
        other.kill()
        other.wait()
    line, files = done.stdout.splitlines()
    assert said in line
    assert files == ("open" if "dac" in kept else "closed")


def test_an_emulated_gpu_that_does_not_run_needs_no_driver_of_nvidias(tmp_path: Path) -> None:
    for name, look in checks.checks(EmulatedDriver(tmp_path)):
        if name != "privileged controls":
            with pytest.raises(NotSupportedError, match="start one with `runlist emulator`"):
                look()
