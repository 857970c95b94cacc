"""`runlist policy`: switching, refusing, and policies that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runlist.policies import DEFAULT_POLICY, builtin_policies
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker

Start = Callable[..., Worker]


def test_policies_are_listed_and_switched(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices, tmp_path: Path
) -> None:
    in_use = {name: name == DEFAULT_POLICY for name in builtin_policies()}
    assert {policy["name"]: policy["in_use"] for policy in commands.json("policy", "list")} == in_use
    tenant = worker()
    commands.ok("attach", str(tenant.pid), "--class", "normal")
    assert slices.of(tenant.pid) == [20_000] * 4
    assert commands.json("policy", "use", "gpreempt")["policy"] == "gpreempt"
    assert slices.of(tenant.pid) == [1] * 4
    assert commands.json("ps")[0]["policy"] == "gpreempt"
    assert "* gpreempt" in commands.ok("policy", "list")
    status = commands.json("policy", "use", "priority", "--option", "quantum_ms=20")
    assert status["policy_options"] == {"quantum_ms": "20"}

    own = tmp_path / "own.py"
    own.write_text(
        "from runlist.model import Share\nfrom runlist.policies import Decision, Policy\n"
        "class POLICY(Policy):\n    summary = 'own'\n"
        "    def decide(self, tasks, now):\n        return Decision({task.key: Share(5000) for task in tasks})\n"
    )
    commands.ok("policy", "use", "own.py", cwd=tmp_path)  # relative to the caller, not to the daemon
    assert slices.of(tenant.pid) == [5000] * 4
    assert "own.py" in commands.ok("policy", "list")


def test_gpreempt_refuses_a_second_background_task(
    commands: Commands, worker: Start, slices: Slices, start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon("--policy", "gpreempt")
    first, second = worker(), worker()
    commands.ok("attach", str(first.pid), "--class", "batch")
    line = commands.fails(1, "attach", str(second.pid), "--class", "batch")
    assert "would stop each other" in line
    assert slices.of(second.pid) == DEFAULT_SLICES
    assert [task.pid for task in daemon.client.ps()] == [first.pid]
    commands.ok("attach", str(second.pid), "--class", "latency")
    commands.fails(1, "set", str(second.pid), "class=normal")
    assert slices.of(second.pid) == [1_000_000] * 4
    commands.ok("policy", "use", "priority")
    commands.ok("set", str(second.pid), "class=batch")
    assert "nothing changed" in commands.fails(1, "policy", "use", "gpreempt")
    for tenant in (first, second):
        tenant.wait_for_progress()


def test_a_policy_that_misbehaves_is_dropped(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices, tmp_path: Path
) -> None:
    tenant = worker()
    commands.ok("attach", str(tenant.pid), "--class", "normal")
    for number, body in enumerate(["1/0", "return None", "return Decision({task.key: 'x' for task in tasks})"]):
        path = tmp_path / f"bad{number}.py"
        path.write_text(
            "from runlist.policies import Decision, Policy\nclass POLICY(Policy):\n    summary = 'bad'\n"
            f"    def decide(self, tasks, now):\n        {body}\n"
        )
        commands.ok("policy", "use", str(path))
        assert slices.of(tenant.pid) == [20_000] * 4
        tenant.wait_for_progress()
        assert commands.json("ps")[0]["policy"] == "priority"
