"""Where the options of `runlist run` end and its command begins, and how its lending ends."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.main import get_command

from runlist import wire
from runlist.cli import application, launch, main
from runlist.wire import BorrowRequest
from tests.fixtures.fake_daemon import FakeDaemon, status

PROGRAM = ["python", "train.py", "--class", "small", "--help", "--", "-x"]


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_options_behind_the_command_are_its_own(separator: list[str]) -> None:
    run = get_command(application()).commands["run"]  # type: ignore[attr-defined]
    given = run.make_context("run", ["--class", "batch", *separator, *PROGRAM]).params
    assert (given["class_setting"], [*given["command"]]) == ("batch", PROGRAM)


def test_a_slip_of_the_pen_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--memroy", "8G", "--", "true"])
    assert end.value.code == 2
    assert "No such option: --memroy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["run", "--class"], "runlist run"),
        (["policy", "use", "fair", "--option"], "runlist policy"),
        (["--nosuch"], "runlist"),
    ],
)
def test_a_mistake_names_the_help_of_its_command(
    words: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert f"(see `{where}" in capsys.readouterr().err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "runlist", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "runlist")


@pytest.mark.parametrize(
    ("options", "runs"),
    [((), True), (("--memory", "2G"), False), (("--cap", "30"), False), (("--memory", "2G", "--no-strict"), True)],
)
def test_a_region_that_the_daemon_refuses_stops_only_who_needs_it(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], runs: bool
) -> None:
    """As a daemon that runs on after an upgrade does, which may not be this user's to end."""
    refusal = "the memory region is refused: it has 5 bytes, not 6"
    answer = fake._answer
    fake.version, fake.status = "0.4.0", status(version="0.4.0")

    def refuse(request: object) -> object:
        if isinstance(request, wire.Launch):
            return wire.Failure(refusal, 1) if request.region else wire.Tasks([])
        return answer(request)

    monkeypatch.setattr(fake, "_answer", refuse)
    shown = ["sh", "-c", 'echo "$LD_PRELOAD$RUNLIST_REGION"; exit 7']
    words = [sys.executable, "-m", "runlist.cli", "run", *options, "--", *shown]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    said = done.stderr
    assert said.startswith(f"runlist: {refusal} (process 7 is a daemon of Runlist 0.4.0, and this is ")
    assert said.count("\n") == 1
    if runs:
        assert (done.returncode, done.stdout) == (7, "\n")
        assert said.endswith(" managed); going on without\n")
        assert [(sent.region, sent.settings) for sent in fake.asked(wire.Launch)][1:] == [(False, {})]
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert said.endswith(" managed)\n")


def test_lending_ends_quietly_with_the_daemon_or_the_command() -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    for fd in (0, 1 << 20):  # one that is there, and one that is not
        requests = iter([BorrowRequest(os.getpid(), fd)])
        launch._lend(SimpleNamespace(serve_launch=lambda requests=requests: requests, lend=gone))  # type: ignore[arg-type]
