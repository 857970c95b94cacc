"""Rules of the scheduler of operations with real clients, on an emulated GPU of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import ROOT
from bench.harness import library
from runlist.emulated import EmulatedGpu
from runlist.operations.profiles import Store
from runlist.operations.profiles.store import LEARNED

pytestmark = pytest.mark.timeout(170)

CLIENTS = """
import json, sys, threading, time
from dataclasses import asdict
from runlist import operations
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

rule, seconds, until, more = sys.argv[1], float(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
right, end = {}, threading.Event()

def work(client):
    with scheduler.client(client), Gpu(0) as gpu:
        made = Accumulator(gpu, blocks=4)
        while not end.is_set():
            for _ in range(5):
                made.launch(20)
            made.synchronize()
        right[client] = made.correct()

with Gpu(0), operations.start(2, rule, **more) as scheduler:
    threads = [threading.Thread(target=work, args=(client,)) for client in (0, 1)]
    for one in threads: one.start()
    latest = time.monotonic() + seconds
    while time.monotonic() < latest and not eval(until):
        time.sleep(0.02)
    why = scheduler.why()
    counted = [asdict(scheduler.counters(client)) for client in (0, 1)]
    end.set()
    for one in threads: one.join()
assert right == {0: True, 1: True}
print(json.dumps({"why": why, "counted": counted}))
"""

RULE = """
import json
from runlist.operations import CLOSED, Rule

class Watched(Rule):
    summary = "writes down what it sees, and closes"
    every_s = 0.01

    def __init__(self, options):
        self.out = options["out"]

    def admission(self, model):
        seen = [len(model.clients), model.clients[0].requests, list(model.latencies_ns), model.sms, model.now_s]
        with open(self.out, "a") as file:
            file.write(json.dumps(seen) + "\\n")
        return CLOSED

    def why(self):
        return "closed by hand"

RULE = Watched
"""


DEFERRED = "scheduler.counters(1).deferred"
"""Of client 1 something waited."""


@pytest.fixture
def run(fresh_gpu: Callable[..., EmulatedGpu], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Two clients by a rule, for so long, or until something holds of their scheduler: what they say at their end."""
    environment = {
        **os.environ, **fresh_gpu().environment(), **library.operations(), "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip

    def start(
        rule: str, seconds: float, variables: dict[str, str] | None = None, until: str = "False", **more: Any
    ) -> dict[str, Any]:
        words = [sys.executable, "-c", CLIENTS, rule, str(seconds), until, json.dumps(more)]
        whole = {**environment, **(variables or {})}
        done = subprocess.run(words, env=whole, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return start


def test_a_rule_of_a_users_own_sees_the_model_and_is_in_force(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    rule, out = tmp_path / "mine.py", tmp_path / "seen"
    rule.write_text(RULE)
    rule.chmod(0o600)
    found = run(f"{rule}(out={out})", 1.5)
    assert found["why"] == "closed by hand"
    assert found["counted"][1]["deferred"] > 0
    seen = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(seen) > 5
    assert {(clients, sms) for clients, _, _, sms, _ in seen} == {(2, seen[0][3])}
    assert seen[0][3] > 0
    requests = [one[1] for one in seen]
    assert requests == sorted(requests)
    told = sum(len(one[2]) for one in seen)
    assert 0 < told <= found["counted"][0]["requests"] + 50
    assert told >= 0.9 * requests[-1]  # each is told once
    assert all(latency > 0 for one in seen for latency in one[2])


def test_p99_holds_the_other_back_until_it_knows_and_then_lets_it_in(run: Callable[..., dict[str, Any]]) -> None:
    held = run("p99(target_us=1, rest_us=0)", 1.5)  # nobody is as quick, and the other has each of client 0's pauses
    assert held["why"].startswith("step 0 of 8")
    assert held["counted"][1]["deferred"] > 0
    let_in = run("p99(target_us=1e9)", 20.0, until="not scheduler.why().startswith('step 0')")
    assert re.match(r"step [1-8] of 8, target 1000000000 µs", let_in["why"]), let_in


def test_what_one_run_learns_the_next_one_goes_by(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    tiny = "orion(latency_us=1, gate=0.001)"  # a gate of 1 ns: whatever is known to take any time waits
    assert run(tiny, 1.0)["counted"][1]["deferred"] == 0  # nothing is known yet
    run("greedy", 2.0, learn=True)
    store = Store(tmp_path / "state" / "runlist" / "profiles")
    (gpu,) = store.gpus()
    kept = store.look(gpu)["accumulate_lcg"]
    assert kept.source == LEARNED
    assert kept.profile.sms == 1  # four small blocks fit on one
    assert 100 < kept.profile.duration_ns < 100_000_000
    assert run(tiny, 10.0, until=DEFERRED)["counted"][1]["deferred"] > 0
    run("greedy", 1.0, learn=True)
    assert store.look(gpu)["accumulate_lcg"] == kept  # it is known
    assert run(tiny, 1.0, profiles=[])["counted"][1]["deferred"] == 0


def test_what_is_learned_is_in_force_in_the_same_run_and_broken_profiles_are_said(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    learns = run("orion(latency_us=1, gate=0.001)", 20.0, {"RUNLIST_LEARN": "1"}, until=DEFERRED)
    assert learns["counted"][1]["deferred"] > 0
    store = Store(tmp_path / "state" / "runlist" / "profiles")
    store.path(store.gpus()[0]).write_text("{")
    with pytest.raises(AssertionError, match=r"going on without profiles: .*:1: this is no file of profiles"):
        run("greedy", 0.2)


THROWS = """
import threading
from runlist import operations
from runlist.operations import CLOSED
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

with Gpu(0) as gpu:
    with operations.start(2, CLOSED) as scheduler:
        with scheduler.client(0):
            first = Accumulator(gpu, blocks=4)
        with scheduler.client(1):
            other = Accumulator(gpu, blocks=4)

        def raises():
            with Gpu(0), scheduler.client(1):
                for _ in range(50):
                    other.launch(20)
                raise KeyError("its own")

        before = scheduler.counters(1)
        died = []
        threading.excepthook = lambda args: died.append(args.exc_type)
        thread = threading.Thread(target=raises)
        with scheduler.client(0):
            for _ in range(20):
                first.launch(2000)
        thread.start()
        thread.join()
        assert died == [KeyError], died
        with scheduler.client(0):
            first.synchronize()
        with scheduler.client(1):
            other.synchronize()
        counted = scheduler.counters(1)
        assert (counted.launched - before.launched, counted.opened) == (50, 0), counted
        assert counted.deferred > before.deferred, counted
        assert first.correct() and other.correct()
        try:
            with scheduler.client(1):
                other.launch(20)
                raise ValueError
        except ValueError:
            pass
    assert other.correct()  # what was queued went before the scheduler ended
print("ok")
"""


def test_what_a_client_gave_is_done_when_it_throws(fresh_gpu: Callable[..., EmulatedGpu]) -> None:
    environment = {**os.environ, **fresh_gpu().environment(), **library.operations(), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", THROWS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


TORCH = """
import ctypes, sys, threading, types
from contextlib import contextmanager
from cuda.bindings import driver
from runlist import operations
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu, check

# What is used of PyTorch: the thread's current stream, at first the legacy one for all threads.
now = threading.local()
synced = []

class ExternalStream:
    def __init__(self, handle, device=None):
        assert device == 0
        self.cuda_stream = handle

    def synchronize(self):
        synced.append(self.cuda_stream)
        check(driver.cuStreamSynchronize(driver.CUstream(self.cuda_stream)))

@contextmanager
def stream(one):
    before, now.stream = current_stream(), one
    try:
        yield
    finally:
        now.stream = before

def current_stream():
    return getattr(now, "stream", None) or ExternalStream(0, 0)

cuda = types.SimpleNamespace(
    is_available=lambda: True, current_device=lambda: 0, current_stream=current_stream, stream=stream,
    ExternalStream=ExternalStream,
)

gpu = Gpu(0)
scheduler = operations.start(2, "greedy")
with scheduler.client(0):
    assert current_stream().cuda_stream == 0  # nobody imported it
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
made = [Accumulator(gpu, blocks=4) for _ in range(2)]
streams, meet = {}, threading.Barrier(2)

def forward(client):
    with Gpu(0), scheduler.client(client):
        streams[client] = current_stream().cuda_stream
        meet.wait()  # both at once
        made[client].stream = driver.CUstream(streams[client])
        made[client].launch(20)
        helper = threading.Thread(target=backward, args=(client,))  # of no client
        helper.start()
        helper.join()
    assert current_stream().cuda_stream == 0

def backward(client):
    with Gpu(0):
        for _ in range(5):
            made[client].launch(20)

threads = [threading.Thread(target=forward, args=(client,)) for client in (0, 1)]
for one in threads: one.start()
for one in threads: one.join()
assert 0 not in streams.values() and streams[0] != streams[1], streams
assert sorted(synced) == sorted([0, 0, *streams.values()])  # before and at the end
assert [scheduler.counters(client).launched for client in (0, 1)] == [6, 6]
assert all(each.correct() for each in made)
with scheduler.client(1):
    assert current_stream().cuda_stream == streams[1]  # it was free again
    with scheduler.client(1):
        assert current_stream().cuda_stream not in (0, *streams.values())
    with Gpu(0):  # still a client, and on its stream
        made[1].stream = driver.CUstream(0)
        made[1].launch(20)
        made[1].synchronize()
    assert scheduler.counters(1).launched == 7
priorities = [check(driver.cuStreamGetPriority(driver.CUstream(streams[client]))) for client in (0, 1)]
assert priorities[0] < priorities[1], priorities
try:
    with scheduler.client(0):
        raise KeyError("its own")
except KeyError:
    pass
assert current_stream().cuda_stream == 0
scheduler.stop()
print("ok")
"""


def test_each_client_has_a_pytorch_stream_of_its_own(fresh_gpu: Callable[..., EmulatedGpu]) -> None:
    environment = {**os.environ, **fresh_gpu().environment(), **library.operations(), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", TORCH]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


PROCESS = """
import json, sys, threading
from dataclasses import asdict
from runlist import operations
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

told = threading.Thread(target=sys.stdin.read)
told.start()
with operations.start(1, sys.argv[1]) as scheduler, scheduler.client(0), Gpu(0) as gpu:
    made = Accumulator(gpu, blocks=4)
    print("ready", flush=True)
    while told.is_alive():
        for _ in range(5):
            made.launch(20)
        made.synchronize()
    assert made.correct()
    print(json.dumps({"why": scheduler.why(), **asdict(scheduler.counters(0))}))
"""


def test_of_processes_on_one_page_client_0s_own_runs_the_rule(
    fresh_gpu: Callable[..., EmulatedGpu], tmp_path: Path
) -> None:
    page = tmp_path / "page"
    page.touch(0o600)
    shared = {
        **os.environ, **fresh_gpu().environment(), **library.operations(), "PYTHONPATH": str(ROOT),
        "RUNLIST_OPERATIONS": str(page),
    }  # fmt: skip

    def process(client: int) -> subprocess.Popen[str]:
        environment = {**shared, "RUNLIST_OPERATIONS_CLIENT": str(client)}
        words = [sys.executable, "-c", PROCESS, "p99(target_us=1)"]
        started = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        return started

    with process(0) as first, process(1) as other:
        time.sleep(1.5)
        said = [json.loads(one.communicate(timeout=100)[0]) for one in (other, first)]
        assert (other.returncode, first.returncode) == (0, 0)
    assert said[0]["why"] == ""  # it leaves the rule to client 0
    assert said[0]["deferred"] > 0
    assert said[1]["why"].startswith("step 0 of 8")
    assert said[1]["requests"] > 0
