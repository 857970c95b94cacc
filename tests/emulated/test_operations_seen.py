"""What `ps --json` and `top` show of clients that are scheduled operation by operation, of real programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec

from runlist.top.clients import client_lines
from runlist.views.structs import ClientView, TaskView
from tests.fixtures.daemon import Commands, Daemon, task_of, wait_for

CLIENTS = """
import sys, threading, time
from runlist import operations
from runlist.operations import Bound, Profile
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

end = threading.Event()
known = [Profile("accumulate_lcg", Bound.COMPUTE, 4, 20_000)]

def work(client):
    with scheduler.client(client), Gpu(0) as gpu:
        made = Accumulator(gpu, blocks=4)
        while not end.is_set():
            for _ in range(20):
                made.launch(20)
            made.synchronize()

with Gpu(0), operations.start(2, "exclusive", known) as scheduler:
    threads = [threading.Thread(target=work, args=(client,)) for client in (0, 1)]
    for one in threads: one.start()
    print("ready", flush=True)
    assert sys.stdin.readline() == "other rule\\n"
    scheduler.use("orion(sms=66, gate=off)")
    assert sys.stdin.readline() == "end\\n"
    end.set()
    for one in threads: one.join()
"""


def test_both_clients_of_a_program_are_seen_beside_each_other(
    commands: Commands, start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon()
    env = {**commands.environment, "RUNLIST_OPERATIONS": "threads"}
    program = ("run", "--class", "latency", "--", sys.executable, "-c", CLIENTS)
    process = commands.start(*program, env=env, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n", process.communicate()

    def clients() -> list[ClientView]:
        (task,) = daemon.client.ps() or [None]
        return [] if task is None else task.clients

    wait_for(lambda: len(clients()) == 2 and clients()[1].operations_deferred, "both clients")
    (told,) = commands.json("ps")
    task = msgspec.convert(told, TaskView)
    first, other = task.clients
    assert (first.client, first.beside, first.operations_deferred, first.wait_us) == (0, "at once", 0, None)
    assert (other.client, other.beside) == (1, "nothing, 1 ms ahead, after 100 µs")
    assert first.operations_per_s > 1
    assert 0 < (first.sms_share or 0) < 10
    titles, high, low = client_lines([task], 160, 40)
    assert titles.startswith("CLIENT")
    assert (high.split()[:2], low.split()[:2]) == (["0", "HP"], ["1", "BE"])
    process.stdin.write("other rule\n")
    process.stdin.flush()
    wait_for(lambda: clients()[1].beside == "complements, to 66 SMs", "the other rule")
    process.communicate("end\n", timeout=100)
    assert process.returncode == 0


def test_a_program_without_such_clients_has_none(daemon: Daemon, worker: Callable[..., object]) -> None:
    one = worker()
    daemon.client.attach(one.pid, "batch")  # type: ignore[attr-defined]
    assert task_of(daemon, one.pid).clients == []  # type: ignore[attr-defined]
