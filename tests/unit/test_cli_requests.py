"""What commands ask of the daemon, and how they show what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runlist import wire
from runlist.cli import main
from runlist.errors import ExitCode
from runlist.planes.registry import controls
from runlist.settings.table import SETTINGS
from tests.fixtures.fake_daemon import FakeDaemon, gpu_view, status, view

ALL = {
    "class": "deadline", "weight": "300", "cap": "30ms/100ms", "burst": "20ms", "deadline": "5ms/20ms", "p99": "5ms",
    "group": "job", "memory": "8G", "timeslice": "2ms", **{row.name: row.words[-1] for row in controls()},
}  # fmt: skip


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    return int(caught.value.code or 0)


def words_of(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


# -- GPUs ------------------------------------------------------------------------------------------


def test_gpus_are_listed_from_the_daemons_status(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ps", "--gpus") == 0
    assert capsys.readouterr().out == "no GPUs\n"
    fake.status = status(gpus=[gpu_view(), gpu_view(gpu="GPU-1", memory_refusals=4)])
    assert run("ps", "--gpus") == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("GPU-1", "GPU-4e3db026-c5f4")
    assert "REFUSED" in header
    assert run("ps", "--gpus", "--json") == 0
    assert [gpu["memory_refusals"] for gpu in json.loads(capsys.readouterr().out)] == [0, 4]
    assert run("daemon", "--status", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 2


# -- settings --------------------------------------------------------------------------------------


def test_the_table_of_options_is_all_here() -> None:
    assert list(SETTINGS) == list(ALL)


@pytest.mark.parametrize("settings", [{}, ALL, *({key: value} for key, value in ALL.items())])
def test_attach_sends_what_was_given_and_nothing_else(fake: FakeDaemon, settings: dict[str, str]) -> None:
    assert run("attach", "42", *words_of(settings)) == 0
    assert fake.requests == [wire.GetStatus(), wire.Attach(42, settings)]  # first, whether it will last


def test_attach_that_waits_asks_again_until_there_are_tasks(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers |= {wire.Attach: wire.Tasks([], ["a note"]), wire.Change: wire.Failure("", ExitCode.NO_TARGET)}
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        fake.answers[wire.Change] = wire.Tasks([view()] if len(pauses) == 3 else [])

    monkeypatch.setattr(time, "sleep", sleep)
    assert run("attach", "42", "--wait", "--class", "batch") == 0
    nothing = wire.Change(42, {})
    attach = wire.Attach(42, {"class": "batch"}, wait=True)
    assert fake.requests == [wire.GetStatus(), nothing, attach, nothing, nothing, nothing]
    captured = capsys.readouterr()
    assert captured.err == "runlist: a note\n"
    assert "train.py" in captured.out


@pytest.mark.parametrize("managed", [False, True])
def test_ctrl_c_leaves_a_process_as_it_was(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, managed: bool) -> None:
    fake.answers |= {
        wire.Attach: wire.Tasks([]), wire.Change: wire.Tasks([]) if managed else wire.Failure("", ExitCode.NO_TARGET)
    }  # fmt: skip

    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert run("attach", "42", "--wait") == 130
    assert fake.asked(wire.Detach) == ([] if managed else [wire.Detach(42)])


@pytest.mark.parametrize("settings", [{}, ALL])
def test_run_sends_what_was_given_and_nothing_else(fake: FakeDaemon, settings: dict[str, str]) -> None:
    words = [sys.executable, "-m", "runlist.cli", "run", *words_of(settings), "--", "sh", "-c", "exit 7", "--cap", "9"]
    process = subprocess.run(words, timeout=60)
    assert process.returncode == 7
    assert [request.settings for request in fake.asked(wire.Launch)] == [settings]
    assert len(fake.requests) == 2


def test_run_says_that_it_waits_for_room(fake: FakeDaemon) -> None:
    fake.answers[wire.Launch] = None
    process = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "run", "--", "true"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "waits for room" in process.stderr.readline()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_bad_setting_is_refused_in_the_daemons_words(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers[wire.Attach] = wire.Failure("a weight is too much today", ExitCode.USAGE)
    assert run("attach", "42", "--weight", "1") == 2
    assert capsys.readouterr().err == "runlist: a weight is too much today\n"
    assert run("attach", "42", "--weight", "0") == 2  # no daemon needs to be asked
    assert capsys.readouterr().err == "runlist: weight=0: a weight is 1 to 10000, not 0\n"
    assert fake.requests == [wire.GetStatus(), wire.Attach(42, {"weight": "1"})]


def test_set_sends_all_settings_at_once(fake: FakeDaemon) -> None:
    assert run("set", "42", "class=latency", "weight=7") == 0
    assert fake.requests == [wire.Change(42, {"class": "latency", "weight": "7"})]


# -- ps --------------------------------------------------------------------------------------------


class TwoLooks:
    """Stands for `time.sleep`: lets a command look twice, then presses Ctrl-C."""

    def __init__(self, fake: FakeDaemon) -> None:
        self.fake = fake
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == 2:
            raise KeyboardInterrupt
        self.fake.tasks = [view(command="another")]


@pytest.mark.parametrize(("words", "every"), [(["--watch"], 2.0), (["--watch", "0.5"], 0.5), (["-w", "9"], 9.0)])
def test_ps_watch_looks_again_until_interrupted(
    fake: FakeDaemon,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    every: float,
) -> None:
    sleep = TwoLooks(fake)
    monkeypatch.setattr(time, "sleep", sleep)
    assert run("ps", *words) == 130
    first, second = capsys.readouterr().out.strip().split("\n\n")
    assert first.endswith("train.py --big")
    assert second.endswith("another")
    assert "\x1b" not in first + second  # no terminal, no drawing
    assert sleep.seconds == [every, every]


def test_ps_watch_as_json_is_one_document_each_time(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", TwoLooks(fake))
    assert run("ps", "--watch", "--json") == 130
    text = capsys.readouterr().out
    first, end = json.JSONDecoder().raw_decode(text)
    second = json.loads(text[end:])
    assert (first[0]["command"], second[0]["command"]) == ("train.py --big", "another")


def test_ps_watch_draws_over_the_last_table_on_a_terminal(fake: FakeDaemon) -> None:
    terminal, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "runlist.cli", "ps", "--watch", "0.1"], stdout=theirs)
    os.close(theirs)
    text = b""
    while text.count(b"COMMAND") < 3:
        text += os.read(terminal, 4096)
    process.send_signal(2)
    assert process.wait(60) == 130
    os.close(terminal)
    assert text.count(b"\x1b[H\x1b[J") >= 2
    assert text.startswith(b"\x1b[H\x1b[J")


def test_ps_long(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    fake.tasks = [view(rule="rules.toml:12", why="the only one")]
    assert run("ps", "--long") == 0
    out = capsys.readouterr().out
    assert "rules.toml:12" in out
    assert "the only one" in out


# -- policy show, daemon ---------------------------------------------------------------------------


def test_policy_show_says_why(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    fake.tasks = [view(rule="rules.toml:12", why="cap 30 %", cap_percent=30.0), view(pid=43)]
    fake.status = status(
        policy="fair",
        policy_options={"b": "2", "a": "1"},
        rules="/etc/rules.toml",
        waiting=["process 9 (x\x1b)"],
        others_waiting=2,
        troubles=["7 records were lost"],
    )
    assert run("policy", "show") == 0
    policy, trouble, rules, header, first, second, waiting, others = capsys.readouterr().out.splitlines()
    assert policy == "policy: fair a=1 b=2"
    assert trouble == "trouble: 7 records were lost"
    assert rules == "rules: /etc/rules.toml"
    assert {"PID", "CLASS", "CAP", "RULE", "WHY"} <= set(header.split())
    assert "rules.toml:12" in first
    assert "cap 30 %" in first
    assert second.startswith("43 ")
    assert waiting == "waits for room: process 9 (x?)"
    assert others == "waits for room: of other users, 2"

    assert run("policy", "show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {"policy", "policy_options", "rules", "waiting", "others_waiting", "troubles", "tasks"}
    assert [task["why"] for task in shown["tasks"]] == ["cap 30 %", ""]

    assert run("daemon", "--status") == 0
    assert capsys.readouterr().out.splitlines()[1] == trouble


def test_the_status_of_a_daemon_says_whether_its_kernel_plane_is_on(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.status = status(kernel_plane="its loader ended \x1b", troubles=["7 records were lost"])
    assert run("daemon", "--status") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "kernel plane: its loader ended ?",
        "trouble: 7 records were lost",
    ]


def test_policy_show_without_anything(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    fake.tasks = []
    assert run("policy", "show") == 0
    assert capsys.readouterr().out.splitlines() == ["policy: priority", "rules: none", "no tasks"]


def test_the_daemon_gets_its_rules_by_a_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execve(program: str, words: list[str], environment: dict[str, str]) -> None:
        started.append(words)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNLIST_DEVICE", raising=False)
    (tmp_path / "mine.toml").write_text("")
    run("daemon", "--rules", "mine.toml", "--policy", "fair")
    assert started[0][1] == "-I"
    assert started[0][3:] == ["runlist.daemon", "--policy", "fair", "--rules", str(tmp_path / "mine.toml")]
    run("daemon")
    assert "--rules" not in started[1]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # what is started next takes Ctrl-C
