"""Programs that share SMs: what is asked for, what is refused, and places."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from runlist import interpreter
from runlist.cli.side_by_side import asked_sharing
from runlist.errors import NoPermissionError, NotSupportedError, RunlistError, UsageError
from runlist.settings.table import parse_settings
from runlist.sharing import attendant, gpus, joining, mps, places
from tests.fixtures.daemon import wait_for

GPU = gpus.Gpu("GPU-1", "NVIDIA H100 80GB HBM3", 132, 0)


@pytest.mark.parametrize(
    ("asked", "percent"),
    [("40%", 40), ("40 %", 40), ("100%", 100), ("132", 100), ("64", 48), ("66", 50), ("8", 6), ("1", 1), (" 55 ", 41)],
)
def test_the_percentage_that_gives_so_many_sms(asked: str, percent: int) -> None:
    """MPS rounds up: the percentage is the largest that does not give more than was asked for."""
    assert gpus.percent_of(asked, [GPU]) == percent


def test_of_different_gpus_the_smallest_counts() -> None:
    small = gpus.Gpu("GPU-2", "small", 66, 0)
    assert gpus.percent_of("33", [GPU, small]) == 50
    with pytest.raises(UsageError, match="a number of SMs, 1 to 66"):
        gpus.percent_of("67", [GPU, small])


@pytest.mark.parametrize("asked", ["0", "0%", "101%", "133", "half", "", "-1", "4.5%", "%", "\u0661%"])
def test_parts_that_are_none(asked: str) -> None:
    with pytest.raises(UsageError, match="take 1% to 100%, or a number of SMs, 1 to 132"):
        gpus.percent_of(asked, [GPU])


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([], "there is no GPU"),
        ([gpus.Gpu("GPU-1", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 0)], "GPU-1 is in MIG mode"),
        ([GPU, gpus.Gpu("GPU-2", "x", 132, 2)], "GPU-2 takes no programs: its compute mode is PROHIBITED"),
    ],
)
def test_gpus_that_cannot_be_shared(found: list[gpus.Gpu], what: str) -> None:
    with pytest.raises(NotSupportedError, match=what):
        gpus.check(found)


def test_why_a_client_gets_no_gpu() -> None:
    gpus.check([GPU])
    error = gpus.Refused("CUDA_ERROR_MPS_CONNECTION_FAILED")
    assert "MPS takes no programs here: CUDA_ERROR_MPS_CONNECTION_FAILED" in str(gpus.unusable([GPU], error))
    exclusive = gpus.Gpu("GPU-2", "x", 132, 3)
    gpus.check([exclusive])  # MPS itself is the one that has it
    said = gpus.unusable([GPU, exclusive], error)
    assert "GPU-2 is in exclusive mode and somebody else has it" in str(said)
    assert said.exit_code == 5


@pytest.mark.parametrize(
    ("share", "settings", "sms", "what"),
    [
        ("gpu", {}, None, "--share gpu: take time or sms"),
        ("time", {}, "40%", "--sms goes with --share sms"),
        ("sms", {}, None, "--share sms has two classes"),
        ("sms", {"class": "deadline"}, None, "--share sms has two classes"),
        ("sms", {"class": "batch"}, "x", "sms=x: take 1% to 100%, or a number of SMs, 1 or more"),
        ("sms", {"class": "batch"}, "0", "sms=0: take 1% to 100%, or a number of SMs, 1 or more"),
    ],
)
def test_what_cannot_be_asked_for(share: str, settings: dict[str, str], sms: str | None, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        asked_sharing(share, settings, sms)


def test_inside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_sharing("time", {}, None) is None
    assert asked_sharing("sms", {"class": "Batch"}, "3") is not None
    monkeypatch.setenv("RUNLIST_OPERATIONS", "threads")
    assert asked_sharing("sms", {"class": "latency"}, None) is not None
    monkeypatch.setenv("RUNLIST_OPERATIONS", "/a/page")
    with pytest.raises(UsageError, match="this runs inside another `runlist run --share sms`"):
        asked_sharing("sms", {"class": "latency"}, None)


@pytest.mark.parametrize("key", ["sms", "share"])
def test_a_running_program_keeps_its_sms(key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} cannot be set: MPS gives SMs to a program when it starts"):
        parse_settings({key: "40%"})


def test_a_control_daemon_has_no_settings_of_clients() -> None:
    inherited = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "3", "CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_VISIBLE_DEVICES": "2",
        "LD_PRELOAD": "x.so", "RUNLIST_MEMORY": "1G", "PATH": "/bin",
    }  # fmt: skip
    assert mps.environment(inherited) == {"PATH": "/bin"}


def test_without_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupportedError, match="nvidia-cuda-mps-control is not installed here"):
        mps.program()
    program = tmp_path / mps.CONTROL
    program.touch(mode=0o755)
    assert mps.program() == str(program)
    program.chmod(0o777)
    with pytest.raises(NoPermissionError, match="others can write to"):
        mps.program()


def test_sockets_whose_paths_are_too_long() -> None:
    room = 107 - len("/control_privileged")
    mps.check_path(Path("/" + "x" * (room - 1)))
    with pytest.raises(RunlistError, match="too long for MPS by 1 bytes"):
        mps.check_path(Path("/" + "x" * room))


def _taken(folder: Path, *, first: bool = False) -> places.Place:
    place = places.take(folder, first=first)
    assert isinstance(place, places.Place)
    return place


def test_places_run_out_and_come_back(tmp_path: Path) -> None:
    assert not places.is_held(tmp_path / places.PLACES)
    first = _taken(tmp_path, first=True)
    assert first.index == 0
    assert places.take(tmp_path, first=True) == os.getpid()
    taken = [_taken(tmp_path) for _ in range(places.CLIENTS - 1)]
    assert [place.index for place in taken] == list(range(1, places.CLIENTS))
    assert places.take(tmp_path, first=False) is None
    assert min(place.fd for place in taken) >= 100
    taken[6].close()
    taken[6] = _taken(tmp_path)
    assert taken[6].index == 7
    first.close()
    assert places.is_held(tmp_path / places.PLACES)
    _taken(tmp_path, first=True).close()
    for place in taken:
        place.close()
    assert not places.is_held(tmp_path / places.PLACES)


def test_a_place_is_kept_by_who_inherited_it(tmp_path: Path) -> None:
    place = _taken(tmp_path, first=True)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    place.close()
    assert places.take(tmp_path, first=True) == os.getpid()
    os.close(theirs)
    os.waitpid(child, 0)
    os.close(ours)
    _taken(tmp_path, first=True).close()


def test_a_control_daemon_that_names_one_server_on_and_on(tmp_path: Path) -> None:
    """Each that is named is watched by a descriptor."""
    program = tmp_path / "control"
    program.write_text(f"#!/bin/sh\nyes {os.getpid()} | head -c 600000\n")
    program.chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))
    said: list[str] = []
    with joining._watching(joining._Server(str(program), tmp_path, own=False), said.append):
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert said == []


def test_a_control_daemon_that_refuses_at_first_is_asked_again(tmp_path: Path) -> None:
    program, asked = tmp_path / "program", tmp_path / "asked"
    program.write_text(f"#!/bin/sh\necho >> {asked}\n[ $(wc -l < {asked}) -ge 3 ] || exit 1\necho 7\n")
    program.chmod(0o755)
    assert mps.servers(str(program), tmp_path) is None  # there is no socket
    assert len(asked.read_text()) == 1
    (tmp_path / "control").touch()
    assert mps.servers(str(program), tmp_path) == [7]
    asked.unlink()
    program.write_text(f"#!/bin/sh\necho >> {asked}\nexit 1\n")
    assert mps.servers(str(program), tmp_path) is None
    assert len(asked.read_text()) == 3


@pytest.mark.parametrize("name", [places.PAGE, places.PLACES])
def test_files_of_others_are_refused(tmp_path: Path, name: str) -> None:
    os.close(places.open_places(tmp_path))
    (tmp_path / name).chmod(0o644)
    with pytest.raises(RunlistError, match=f"{name} can be read or written by others"):
        places.open_places(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/etc/passwd")
    with pytest.raises(RunlistError, match="symbolic links"):
        places.open_places(tmp_path)


def test_the_page_is_free_for_the_librarys_own_locks(tmp_path: Path) -> None:
    """A process locks its byte of the page, and loses that if it closes any descriptor of it: it has none of ours."""
    place = _taken(tmp_path, first=True)
    page = tmp_path / places.PAGE
    assert page.stat().st_size == 0
    assert page.stat().st_mode & 0o777 == 0o600
    with page.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 16)
    assert not os.path.samestat(os.fstat(place.fd), page.stat())
    place.close()


def test_a_turn_is_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / places.TURN
    with places.Turn(path):
        assert places.is_held(path)
    assert not places.is_held(path)


@pytest.mark.parametrize("awaited", [True, False])
def test_an_attendant_starts_something_for_who_still_waits_for_it_alone(tmp_path: Path, awaited: bool) -> None:
    """Whoever was killed as it started one may have been followed by another, which starts its own."""
    folder, turn = tmp_path / "folder", tmp_path / "turn"
    folder.mkdir(mode=0o700)
    ours, theirs = os.pipe()
    if not awaited:
        os.close(ours)
    words = ("runlist.sharing.attendant", str(folder), str(turn), "/nowhere/mps", "", str(theirs))
    subprocess.run(interpreter.command(*words), pass_fds=[theirs], check=True)
    os.close(theirs)
    if awaited:
        with open(ours) as said:
            assert said.read() == "/nowhere/mps cannot be started: No such file or directory\n"
    wait_for((folder / attendant.LOCK).exists)
    wait_for(lambda: not places.is_held(folder / attendant.LOCK))
    assert (folder / attendant.PIPE).exists() is awaited
