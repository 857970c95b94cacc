"""`runlist demo` as a whole, on the device of the session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Demo = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def demo(device_env: dict[str, str], tmp_path: Path) -> Iterator[Demo]:
    """Starts `runlist demo` with arguments, in an empty folder."""
    started = []

    def start(*arguments: str, environment: dict[str, str] = device_env) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from runlist.cli import main; main()", "demo", *arguments],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Reads progress until a line has `words`."""
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"{words!r} did not come")


def children(pid: int) -> dict[int, str]:
    """Direct children of a process and their command lines."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in pids}


def test_it_prints_every_configuration_and_draws_them(demo: Demo, tmp_path: Path) -> None:
    process = demo("--seconds", "4", "--json")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert [row["configuration"] for row in result["rows"]] == ["alone", "default sharing", "Runlist"]
    assert all(
        row["latency_us"]["p50"] <= row["latency_us"]["p99"] <= row["latency_us"]["max"] for row in result["rows"]
    )
    assert all(row["batch_per_second"] > 0 for row in result["rows"])
    assert result["correct"]
    assert (tmp_path / "runlist-demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"device: {result['device']}" in err
    assert ("too noisy here to show anything: " in err) == bool(result["noise"])


def test_without_what_draws_the_table_is_printed(device_env: dict[str, str], tmp_path: Path) -> None:
    """matplotlib is an extra: a first look does without, and says how to get it."""
    begin = "import sys; sys.modules['matplotlib'] = None; from runlist.cli import main; main()"

    def demo(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-c", begin, "demo", "--seconds", "2", *words]
        done = subprocess.run(command, env=device_env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        return done.returncode, done.stdout, done.stderr

    code, out, err = demo()
    assert (code, list(tmp_path.iterdir())) == (0, [])
    assert "default sharing" in out
    assert "no picture: pip install 'runlist[plot]' draws one" in err
    code, out, err = demo("--out", "picture.png")
    assert (code, out, err) == (5, "", "runlist: --out needs matplotlib: pip install 'runlist[plot]'\n")


def test_without_a_place_for_the_picture_the_table_is_printed(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "nowhere").mkdir()
    process = demo("--seconds", "2", "--out", "nowhere/picture.png")
    wait_for(process, "LC alone")
    (tmp_path / "nowhere").rmdir()
    out, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "default sharing" in out
    assert err.splitlines()[-1].startswith("runlist: the picture nowhere/picture.png cannot be written")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_is_closed_leaves_nothing(demo: Demo, device_env: dict[str, str], number: int) -> None:
    own = ("RUNLIST_EMULATED_GPU", "RUNLIST_DEVICE")  # it makes its own
    environment = {name: value for name, value in device_env.items() if name not in own}
    with tempfile.TemporaryDirectory(prefix="runlist-test-") as folder:  # of a short name, as sockets need
        environment["TMPDIR"] = folder
        process = demo("--seconds", "60", "--device", "emulated", environment=environment)
        wait_for(process, "LC alone")
        assert os.listdir(folder)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert not os.listdir(folder)


@pytest.mark.parametrize("moment", ["LC alone", "default sharing", "Runlist"])
def test_an_interrupt_puts_everything_back(demo: Demo, moment: str) -> None:
    process = demo("--seconds", "60")
    wait_for(process, moment)
    programs = [pid for pid, command in children(process.pid).items() if "runlist.workloads" in command]
    assert len(programs) == 2
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted: everything is put back"
    assert not any(Path(f"/proc/{pid}").exists() for pid in programs)


def test_a_program_that_dies_is_named(demo: Demo) -> None:
    process = demo("--seconds", "60")
    wait_for(process, "default sharing")
    [batch] = [pid for pid, command in children(process.pid).items() if "workloads.batch" in command]
    os.kill(batch, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "runlist: batch ended early (signal 9)"
    assert "Traceback" not in err
