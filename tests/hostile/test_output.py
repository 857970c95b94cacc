"""Output that cannot be written as it is meant, readers that went away, and Ctrl-C at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.daemon import Commands, Daemon, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.fake_daemon import StartFake, start_fake, view

__all__ = ["start_fake"]

NARROW = ({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"})


# -- a terminal of another alphabet ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        *((NARROW[0], words) for words in (["ps", "--long"], ["ps", "--json"], ["ps", "--help"], ["policy", "list"])),
        *((locale, ["ps"]) for locale in NARROW),
    ],
    ids=str,
)
def test_any_alphabet_will_do(
    commands: Commands, start_fake: StartFake, words: list[str], locale: dict[str, str]
) -> None:
    fake = start_fake()
    fake.tasks = [view(command="train µ 語 \U0001f600", why="5 µs, so – to say … ×", policy="µ")]
    commands.environment.update(locale)
    done = commands.run(*words, text=None, encoding="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    if "--json" in words:
        assert json.loads(done.stdout)[0]["command"] == "train µ 語 \U0001f600"
    elif words[0] == "ps" and words[-1] != "--help":
        title, row = done.stdout.splitlines()
        assert title.index("COMMAND") == row.index("train")


def test_what_an_alphabet_lacks_is_written_with_its_nearest_letter(commands: Commands, start_fake: StartFake) -> None:
    start_fake().tasks = [view(timeslice_us=5)]
    commands.environment["PYTHONIOENCODING"] = "ascii"
    assert " 5 us " in commands.ok("ps")
    commands.environment["PYTHONIOENCODING"] = "latin-1"
    assert " 5 µs " in commands.ok("ps", encoding="latin-1")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--", "/no/\udcff"],
        ["trace", "--out", "/no/\udcff", "--seconds", "0.1", "--json"],
        ["policy", "use", "\udcff", "--json"],
        ["set", "1", "class=\udcff", "--json"],
        ["ps", "--device", "\udcff", "--json"],
        ["simulate", "--trace", "/no/\udcff", "--json"],
        ["emulator", "--", "/no/\udcff"],
    ],
    ids=ascii,
)
def test_words_that_are_no_text_are_told_in_one_line(commands: Commands, words: list[str]) -> None:
    done = commands.run(*words)
    assert done.returncode > 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("runlist: ")]
    assert len(lines) == 1, done
    if "--json" in words:
        assert json.loads(done.stdout)["exit_code"] == done.returncode


# -- nobody reads, nothing can be written ----------------------------------------------------------

PRINTS = (
    ["ps"], ["doctor", "--json"], ["ps", "--help"], ["ps", "--watch", "0.1", "--json"], ["detach", "1", "--json"],
)  # fmt: skip


@pytest.mark.parametrize("words", PRINTS, ids=" ".join)
def test_a_reader_that_went_away_a_full_disk_and_no_output(
    commands: Commands, daemon: Daemon, words: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = commands.run(*words, stdout=writer)
    os.close(writer)
    assert gone.returncode in (1, 4)
    assert all(line.startswith("runlist: process 1") for line in gone.stderr.splitlines())
    with open("/dev/full", "w") as full:
        done = commands.run(*words, stdout=full)
    assert done.returncode in (1, 4)
    assert done.stderr.splitlines()[-1] == "runlist: standard output: No space left on device"
    if "--watch" not in words:
        shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "runlist.cli", *words]
        closed = subprocess.run(shell, env=commands.environment, stderr=subprocess.PIPE, text=True, timeout=60)
        assert closed.returncode == commands.run(*words).returncode
        assert "Traceback" not in closed.stderr
        assert "Exception" not in closed.stderr


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-", ">/dev/full 2>&1"])
def test_streams_that_are_closed_or_full_change_no_exit_code(commands: Commands, daemon: Daemon, closed: str) -> None:
    fails = ["run", "--", "sh", "-c", "exit 7"]
    for words, code in ((["detach", "1"], 4), (["top"], 5), (["nonsense"], 2), (fails, 7)):
        script = f'exec "$@" {closed}'
        done = subprocess.run(
            ["sh", "-c", script, "sh", sys.executable, "-m", "runlist.cli", *words],
            env=commands.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr + done.stdout
        assert "Exception" not in done.stderr + done.stdout


def test_a_watch_ends_with_its_reader(commands: Commands, daemon: Daemon) -> None:
    process = commands.start("ps", "--watch", "0.1")
    assert process.stdout is not None
    assert process.stdout.readline() == "no tasks\n"
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""


# -- Ctrl-C ----------------------------------------------------------------------------------------

_PRESSES = """
import os, signal, sys
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            open(os.environ["LOADING"], "w").close()
        if name == os.environ.get("PRESS_AT"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
"""
"""A sitecustomize that tells when the command is about to load its libraries, and presses Ctrl-C before a module."""


@pytest.fixture
def presses(commands: Commands, tmp_path: Path) -> Path:
    """Programs have the sitecustomize; the file that says that a command loads its libraries."""
    (tmp_path / "sitecustomize.py").write_text(_PRESSES)
    commands.environment["PYTHONPATH"] = f"{tmp_path}:{commands.environment['PYTHONPATH']}"
    commands.environment["LOADING"] = str(tmp_path / "loading")
    return tmp_path / "loading"


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (["ps"], ["typer", "msgspec", "runlist.cli.common", "runlist.cli.ps_command", "runlist.cli.tables"]),
        (["run", "--", "true"], ["runlist.cli.launch", "runlist.client", "subprocess", "runlist.wire"]),
        (["doctor"], ["runlist.doctor"]),
        (["demo"], ["runlist.demo", "runlist.demo.command", "runlist.workloads.process"]),
    ],
    ids=lambda value: " ".join(value) if value and " " not in value else "",
)
@pytest.mark.usefixtures("presses")
def test_ctrl_c_while_modules_are_loaded(commands: Commands, words: list[str], modules: list[str]) -> None:
    for module in modules:
        commands.environment["PRESS_AT"] = module
        done = commands.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), module


@pytest.mark.parametrize(
    "words", [["ps", "--watch"], ["run", "--", "sleep", "60"], ["emulator"], ["daemon"]], ids=" ".join
)
def test_ctrl_c_at_any_moment(commands: Commands, presses: Path, words: list[str]) -> None:
    for pause_ms in [0, 100, 300] if TIMES == 1 else range(0, 50 * TIMES, 10):
        presses.unlink(missing_ok=True)
        process = commands.start(*words, start_new_session=True)
        wait_for(presses.exists, "the command to load its libraries")
        time.sleep(pause_ms / 1000)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        by_it = [-signal.SIGINT] if words[0] == "run" else []  # as the command, if that was there
        assert process.returncode in (0, 130, *by_it), (out, err)
        assert "Traceback" not in err
        assert "Exception" not in err
        commands.run("daemon", "--stop")
