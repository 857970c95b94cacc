"""Weights, caps, deadlines, targets, groups and rules, from the command line to what `ps` and `policy show` say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.daemon import Commands, Daemon, Worker, wait_for

Start = Callable[..., Worker]

SETTINGS = ["--class", "latency", "--weight", "300", "--cap", "30", "--burst", "5ms", "--p99", "5ms", "--group", "job"]
SHOWN = {"task_class": "latency", "weight": 300, "cap_percent": 30.0, "target_p99_us": 5000.0, "group": "job"}


def test_attach_with_settings(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    pid = str(tenant.pid)
    (task,) = commands.json("attach", pid, *SETTINGS)
    assert {key: task[key] for key in SHOWN} == SHOWN
    header, row = commands.ok("ps").splitlines()
    assert {"WEIGHT", "CAP"} <= set(header.split())
    assert "30 %" in row
    header, row = commands.ok("ps", "--long").splitlines()
    assert {"P99", "GROUP"} <= set(header.split())
    assert "- of 5 ms" in row

    (task,) = commands.json("attach", pid, "--weight", "50")  # what is not named stays
    assert {key: task[key] for key in SHOWN} == {**SHOWN, "weight": 50}
    (task,) = commands.json("set", pid, "cap=max", "weight=100", "p99=none", "group=none", "class=normal")
    assert (task["cap_percent"], task["weight"], task["target_p99_us"], task["group"]) == (None, 100, None, "")
    assert not {"WEIGHT", "CAP", "P99"} & set(commands.ok("ps").split())
    tenant.wait_for_progress()


def test_run_with_settings(commands: Commands, daemon: Daemon) -> None:
    words = [sys.executable, "-m", "runlist.workloads.batch", "--rounds", "20000"]
    process = commands.start("run", *SETTINGS, "--", *words, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    pid = json.loads(process.stdout.readline())["pid"]
    wait_for(daemon.client.ps, "the program to be noticed")
    (task,) = commands.json("ps")
    assert task["pid"] == pid
    assert {key: task[key] for key in SHOWN} == SHOWN
    process.stdin.write("quit\n")
    process.stdin.close()
    process.stdin = None
    assert process.wait(60) == 0


def test_a_deadline_is_a_class(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    (task,) = commands.json("attach", str(tenant.pid), "--deadline", "5ms/20ms")
    assert (task["task_class"], task["budget_us"], task["period_us"]) == ("deadline", 5000, 20_000)
    assert "5 ms/20 ms" in commands.ok("ps")
    tenant.wait_for_progress()


def test_rules_and_the_words_of_policy_show(
    commands: Commands, worker: Start, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "*worker*"\nset = { class = "batch", weight = 50 }\n')
    daemon = start_daemon("--rules", str(rules))
    tenant = worker()
    wait_for(daemon.client.ps, "the rule to be applied", 60)
    shown = commands.json("policy", "show")
    assert (shown["policy"], Path(shown["rules"]).name, shown["waiting"]) == ("priority", "rules.toml", [])
    assert [task["pid"] for task in shown["tasks"]] == [tenant.pid]
    (task,) = shown["tasks"]
    assert (task["task_class"], task["weight"]) == ("batch", 50)
    assert "rules.toml:1" in task["rule"]
    text = commands.ok("policy", "show")
    assert "policy: priority" in text
    assert "rules.toml:1" in text
    (task,) = commands.json("attach", str(tenant.pid))  # says nothing against the rule
    assert (task["task_class"], task["weight"]) == ("batch", 50)
    (task,) = commands.json("attach", str(tenant.pid), "--class", "latency")
    assert (task["task_class"], task["weight"]) == ("latency", 50)


def test_bad_rules_are_told_with_their_line(commands: Commands, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nset = { weight = 0 }\n")
    done = commands.run("daemon", "--rules", str(rules))
    assert done.returncode == 2
    assert "rules.toml:2" in done.stderr
