"""How soon a drop-in is in force for a process that appears, and for one that runs, beside a thousand others."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness import daemon
from bench.harness.cpu import Used
from bench.harness.figures import AT_MOST, Figure, spread
from runlist import paths
from runlist.client import Client
from runlist.planes.registry import choose_plane
from runlist.views.structs import TaskView
from runlist.workloads.process import WorkloadProcess

OTHERS = 1000
POLL_S = 0.002
PATIENCE_S = 20.0
IDLE_S = 10.0
_KIND = "RULES_LIVE"


def measure(repeats: int = 10) -> list[Figure]:
    """With a daemon that was started without rules, and drop-ins as programs write them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rules-", dir=Path.home())))
        stack.enter_context(daemon.started(folder, "runlist.daemon"))
        drop_ins = paths.drop_ins(choose_plane())
        client = stack.enter_context(Client.open())
        for number in range(OTHERS):
            _write(drop_ins / f"{number}.toml", f'[[rule]]\ncontainer = "{number:064x}"\nset.weight = 5\n')
        _until(lambda: len(client.rules().rules) == OTHERS)
        used = Used([client.status().pid])
        time.sleep(IDLE_S)
        idle = used.share()
        mine = drop_ins / "mine.toml"
        _rule(mine, 100)
        runs = [_appears(client) for _ in range(repeats)]
        changed, vanished = [], []
        with WorkloadProcess("batch", environment={**os.environ, _KIND: "mine"}) as batch:
            batch.run()
            _until(lambda: _task(client, batch.pid) is not None)
            for weight in range(101, 101 + repeats):
                write, there = partial(_rule, mine, weight), partial(_has_weight, client, batch.pid, weight)
                changed.append(_timed(write, there))
                vanished.append(_timed(mine.unlink, lambda: _task(client, batch.pid) is None))
                _rule(mine, weight)
                _until(lambda: _task(client, batch.pid) is not None)
    beside = f"beside {OTHERS} other drop-ins"
    in_force, seen = [run[0] for run in runs], [run[1] for run in runs]
    return [
        Figure(f"drop-in: first channel group seen to in force, slowest of {repeats}", max(in_force), AT_MOST, 1000,
               "ms", {"from its first context call to seen in `ps`, ms": spread(seen), "all": spread(in_force)}),
        Figure(f"drop-in: first context call to seen in `ps`, slowest of {repeats}", max(seen), AT_MOST, 1000, "ms",
               spread(seen)),
        Figure(f"drop-in changed to in force, {beside}, slowest of {repeats}", max(changed), AT_MOST, 1000, "ms",
               spread(changed)),
        Figure(f"drop-in removed to put back, {beside}, slowest of {repeats}", max(vanished), AT_MOST, 1000, "ms",
               spread(vanished)),
        Figure(f"daemon idle with {OTHERS} drop-ins: CPU", idle * 100, AT_MOST, 0.5, "% of a core",
               {"seconds": IDLE_S}),
    ]  # fmt: skip


def _write(path: Path, text: str) -> None:
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(text)
    hidden.chmod(0o600)
    hidden.rename(path)


def _rule(path: Path, weight: int) -> None:
    _write(path, f'[[rule]]\nenvironment = {{ {_KIND} = "mine" }}\nset = {{ class = "batch", weight = {weight} }}\n')


def _task(client: Client, pid: int) -> TaskView | None:
    return next((task for task in client.ps() if task.pid == pid), None)


def _has_weight(client: Client, pid: int, weight: int) -> bool:
    task = _task(client, pid)
    return task is not None and task.weight == weight


def _appears(client: Client) -> tuple[float, float]:
    """A process starts that the rule matches: from its first channel group to in force, and from its first context call
    to seen, in ms.
    """
    with WorkloadProcess("latency", "--rounds", "1000", environment={**os.environ, _KIND: "mine"}) as started:
        began = float(started.ready["context_at"])
        _until(lambda: _task(client, started.pid) is not None)
        seen = time.perf_counter()
        task = _task(client, started.pid)
    if task is None or not task.rule:
        raise RuntimeError("a process that a drop-in matches was not managed by it")
    return task.attach_ms, (seen - began) * 1e3


def _timed(change: Callable[[], object], done: Callable[[], bool]) -> float:
    began = time.perf_counter()
    change()
    _until(done)
    return (time.perf_counter() - began) * 1e3


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("what was to come into force did not")
        time.sleep(POLL_S)
