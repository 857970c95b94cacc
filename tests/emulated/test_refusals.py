"""What commands refuse: it changes nothing, so that all these tests share one daemon."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runlist.policies import builtin_policies
from tests.fixtures.daemon import Commands, Daemon, Slices, Worker
from tests.fixtures.lasting import commands, daemon

__all__ = ["commands", "daemon"]

Start = Callable[..., Worker]

GONE = 2**22 + 1
"""No process has this id."""


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["run", "--", "/nonexistent/program"], 127, "/nonexistent/program: no such command"),
        (["run", "--", "nonexistent-program"], 127, "nonexistent-program: no such command"),
        (["run", "--", ""], 2, "the command has no name: write it behind --"),
        (["run", "--", "/dev/null"], 126, "/dev/null: cannot be run: permission denied"),
        (["run", "--", "/etc"], 126, "/etc: cannot be run: is a directory"),
        (["run", "--", "/dev/null/x"], 126, "cannot be run: not a directory"),
        (["run", "--", f"/{'x' * 300}"], 126, "cannot be run: file name too long"),
        (["run", "--", "a\x1b[31m\nb"], 127, "a?[31m?b: no such command"),
        (["emulator", "--", "/nonexistent/program"], 127, "no such command"),
        (["emulator", "--", "/etc"], 126, "is a directory"),
        (["run", "--class", "fast", "--", "true"], 2, "class=fast"),
        (["run", "--policy", "best", "--", "true"], 2, "no policy 'best'"),
        (["run", "--option", "a=b", "--", "true"], 2, "--option belongs to --policy"),
    ],
)
def test_run_that_cannot_start(commands: Commands, daemon: Daemon, words: list[str], code: int, what: str) -> None:
    assert what in commands.fails(code, *words)
    assert daemon.client.ps() == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["best"], f"no policy 'best': take {', '.join(builtin_policies())} or the path"),
        (["parts"], "no policy 'parts'"),
        (["none.py"], "does not exist"),
        (["priority", "--option", "quantum_ms=1"], "not within"),
        (["priority", "--option", "quantum_ms"], "write key=value"),
        (["gpreempt", "--option", "a=b"], "takes no options"),
    ],
)
def test_a_bad_policy_is_usage_and_changes_nothing(
    commands: Commands, daemon: Daemon, words: list[str], what: str
) -> None:
    assert what in commands.fails(2, "policy", "use", *words)
    assert daemon.client.status().policy == "priority"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("one", "class=batch"), "name whom it is for: --cgroup, --user, --comm"),
        (("../one", "--user", "0"), "'../one': a name is up to 64 letters, digits, - and _"),
        (("one", "class=emperor", "--user", "0"), "emperor"),
        (("one", "class", "--user", "0"), "class: write key=value"),
        (("one", "--user", "no-such-user-here"), "no-such-user-here"),
        (("one", "--user", "9" * 5000), "no user '999"),
        (("one", "--cgroup", "/a/*"), "the policy map takes names in full, without *, ? or ["),
        (("one", "--user", "0", "--refuse", "all"), "--refuse all: take slices, groups=N or gpus=N,N"),
        (("one", "--user", "0", "--refuse", "groups=x"), "--refuse groups=x: take slices, groups=N or gpus=N,N"),
        (("one", "--user", "0", "--refuse", "gpus=0,x"), "--refuse gpus=0,x: take slices, groups=N or gpus=N,N"),
        (("one", "--user", "0", "--refuse", "slices=1"), "--refuse slices=1: take slices, groups=N or gpus=N,N"),
        (
            ("one", "--user", "0", "--refuse", "slices", "--refuse", "slices"),
            "--refuse slices is given twice: give it once",
        ),
        (("one", "--cgroup", 'a"\nset = {}'), "cgroup"),
    ],
)
def test_a_mistake_changes_nothing(commands: Commands, daemon: Daemon, words: tuple[str, ...], line: str) -> None:
    drop_ins = commands.socket.with_name("rules.d")
    said = commands.fails(2, "policy", "map", "set", *words)
    assert line in said
    assert said.count("\n") <= 1
    assert list(drop_ins.iterdir()) == []
    assert daemon.client.rules().rules == []


@pytest.mark.parametrize(
    "words",
    [
        ["--weight", "0"], ["--weight", "x"], ["--cap", "101"], ["--cap", "-3"], ["--burst", "5ms"], ["--p99", "soon"],
        ["--deadline", "5ms"], ["--deadline", "30ms/20ms"], ["--class", "fast"],
    ],
)  # fmt: skip
def test_a_bad_setting_is_usage_and_manages_nothing(
    commands: Commands, daemon: Daemon, worker: Start, words: list[str]
) -> None:
    tenant = worker()
    key, value = words[0].removeprefix("--"), words[1]
    assert f"{key}={value}" in commands.fails(2, "attach", str(tenant.pid), *words, "--json")
    assert f"{key}={value}" in commands.fails(2, "run", *words, "--", "true")
    assert daemon.client.ps() == []


@pytest.mark.parametrize("value", ["8Q", "-1", "", "1e9", "9" * 40, "0x10"])
def test_a_malformed_limit_is_refused_and_nothing_starts(commands: Commands, daemon: Daemon, value: str) -> None:
    line = commands.fails(2, "run", "--memory", value, "--", "echo", "started")
    assert ("take a size, such as 8G" if value else "--memory is empty: give it a value") in line


@pytest.mark.parametrize(
    "words",
    [
        ["attach", "{gone}"], ["detach", "{gone}"], ["suspend", "{gone}"], ["resume", "{gone}"],
        ["set", "{gone}", "class=batch"], ["release", "{gone}"],
    ],
)  # fmt: skip
def test_a_process_that_is_gone_is_no_target(commands: Commands, daemon: Daemon, words: list[str]) -> None:
    line = commands.fails(4, *(word.format(gone=GONE) for word in words), "--json")
    assert f"process {GONE}" in line
    commands.fails(4, *(word.format(gone="9" * 30) for word in words))


@pytest.mark.parametrize("words", [["detach"], ["suspend"], ["resume"], ["set", "class=batch"]])
def test_a_process_that_is_not_managed_is_no_target(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices, words: list[str]
) -> None:
    tenant = worker(idle=True)
    command, *rest = words
    assert "not managed: attach it first" in commands.fails(4, command, str(tenant.pid), *rest)
