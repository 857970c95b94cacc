"""Readers of files: rules, traces of the three kinds, logs of operations, profiles of kernels."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from bench.papers.gpreempt import config
from runlist import operations_log
from runlist.arrivals import MAX_SECONDS
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Facts, Over, Rules
from runlist.operations import Bound, profiles
from runlist.operations.profiles import profile
from runlist.settings.table import apply_changes, memory_change, parse_settings
from runlist.sim.traces import load_trace
from runlist.sim.workload import TenantSpec, Trace
from tests.fixtures.mutation import Texts
from tests.hostile.reader import Reader


def documents(text: str) -> list[bytes]:
    """Each between two lines of ---."""
    return [part.encode() for part in text.split("\n---\n")]


RULES = documents("""\
[limits]
tasks = 4
memory = "120 GiB"
over = "batch"

[[rule]]
user = ["root", 1000]
command = "*train.py*"
set = { class = "batch", weight = 50 }
---
[[rule]]
cgroup = "/system.slice/*"
environment = { RUNLIST_CLASS = "batch", A = ["x*", "[!y]"] }
set = { group = "cgroup", cap = 30 }

[[rule]]
[rule.set]
deadline = "5ms/20ms"
---
[[rule]]
container = "abc*" # a note
set.class = "latency"
set.p99 = "5ms"
---
[limits]
tasks = 1
over = 'refuse'
[[rule]]
set = { memory = '8G', timeslice = '2ms' }
---
[[bound]]
labels = { namespace = ["team-*", "shop"] }
class = ["normal", "batch"]
weight = 200
cap = 50
memory = "20G"
p99 = "5ms"
[[bound]]
cgroup = "/kubepods*"
class = "batch"
[[rule]]
labels = { pod = "web-0", namespace = "shop" }
set = { class = "latency", cap = "80%", burst = "1ms", p99 = "1ms" }
""")

DROP_INS = documents("""\
[[rule]]
container = "0123abcd"
labels = { pod = "web-0", namespace = "team-a", container = "main", job = "4711" }
set = { class = "latency", p99 = "1ms", weight = 1000, group = "container", memory = "40G" }
---
[[rule]]
cgroup = ["/kubepods/a", "/kubepods/b*"]
labels.namespace = "shop"
set = { deadline = "9ms/10ms" }
[[rule]]
user = 0
set = { class = "batch", cap = "20ms/100ms", burst = "5ms", memory = "max" }
""")


def rules(folder: Path) -> Reader:
    path = folder / "rules.toml"

    def read(text: bytes) -> None:
        path.write_bytes(text)
        found = Rules.load(path)
        said = tomllib.loads(text.decode())
        limits = said.get("limits", {})
        assert found.limits.tasks == limits.get("tasks")
        assert found.limits.over == Over(limits.get("over", "queue"))
        assert bool(found) == bool(said.get("rule"))
        for rule, table in zip(found.rules, said.get("rule", []), strict=True):
            assert rule.settings == {key: str(value) for key, value in table.get("set", {}).items()}
            assert rule.where.startswith("rules.toml:")
            assert rule.labels == table.get("labels", {})
        assert len(found.bounds) == len(said.get("bound", []))

    words = [
        b"[[rule]]\n",
        b"[[bound]]\n",
        b"labels",
        b"[limits]\n",
        b"set",
        b"user",
        b"command",
        b"over",
        b"memory",
        b"deadline",
        b"rule.set",
    ]
    return Reader(Texts(RULES, words, "rules"), read)


BOUNDS = ('[[bound]]\nlabels = { namespace = "*" }\nclass = ["normal", "batch"]\nweight = 200\ncap = 50\n'
          'memory = "20G"\np99 = "5ms"\n')  # fmt: skip


def drop_in(folder: Path) -> Reader:
    """Whatever it says, what comes of it is within the bounds, and in good words."""
    main = folder / "main.toml"
    main.write_text(BOUNDS)
    facts = Facts(0, "python", "/kubepods/a", "0123abcd", {"A": "b"})

    def read(text: bytes) -> None:
        book = RuleBook(Rules.load(main))
        book.put("x.toml", Rules.of_drop_in(folder / "x.toml", text))
        match = book.match(facts)
        if match is None:
            return
        assert match.where.startswith("x.toml:")
        assert all(label.isprintable() for label in match.labels.values())
        changes = parse_settings(match.settings)
        task = apply_changes(changes)
        if "namespace" not in match.labels:
            return
        assert task.task_class in ("normal", "batch")
        assert task.weight <= 200
        assert task.cap is not None
        assert task.cap.fraction <= 0.5
        assert task.target_p99_us is None or task.target_p99_us >= 5000
        memory = memory_change(changes)
        assert memory is not None
        assert memory.limit is not None
        assert memory.limit <= 20 << 30
        assert all(note.startswith("x.toml:") and note.isprintable() for note in match.notes)

    words = [b"[[rule]]\n", b"labels", b"set", b"container", b"cgroup", b"memory", b"deadline", b"cap", b"class"]
    return Reader(Texts(DROP_INS, words, "drop_in"), read)


def check_trace(trace: Trace) -> list[TenantSpec]:
    """What a simulation relies on."""
    tenants = list(trace.tenants)
    assert tenants
    assert 0 < trace.seconds <= MAX_SECONDS
    assert trace.gpus >= 1
    assert len({tenant.name for tenant in tenants}) == len(tenants)
    for tenant in tenants:
        assert all(math.isfinite(length) and length > 0 for length in tenant.kernel_us)
        assert 0 <= tenant.start_s < (tenant.end_s or math.inf)
        assert 1 <= tenant.weight <= 10_000
    return tenants


SCENARIOS = documents("""\
about = "two"
seconds = 5
gpus = 2
tenants_per_gpu = 8
[[tenant]]
name = "a"
kernel_us = 3100.0
kernels = 4
gap_us = 400
class = "batch"
weight = 300
count = 2
---
[[tenant]]
name = "s"
kernel_us = [80, 20.5]
class = "latency"
load = { kind = "periodic", period_us = 3000 }
hint_us = 200
[[tenant]]
name = "b"
kernel_us = 10
load = { kind = "after", names = ["s"] }
---
[[tenant]]
name = "d"
kernel_us = 1000
deadline = "5ms/20ms"
load = { kind = "periodic", hz = 30, phase_us = 5 }
start = 1.5
end = 4
segment = 2
---
[[tenant]]
name = "p"
kernel_us = 5
load = { kind = "poisson", hz = [[0, 10], [1.5, 20]] }
cap = "30%"
burst = "5ms"
p99 = "5ms"
group = "g"
---
[[tenant]]
name = "t"
kernel_us = 5
load = { kind = "trace", times_ms = [0, 1.5, 7] }
cap = { quota_us = 30000, period_us = 100000, burst_us = 5 }
timeslice_us = 500
gpu = 0
""")


def scenario(folder: Path) -> Reader:
    path = folder / "scenario.toml"

    def read(text: bytes) -> None:
        path.write_bytes(text)
        tenants = check_trace(load_trace(str(path)))
        said = tomllib.loads(path.read_text())  # in which any end of line is one
        assert len(tenants) == sum(table.get("count", 1) for table in said["tenant"])

    words = [
        b"[[tenant]]\n",
        b"count = 10000\n",
        b"kernels = 100000\n",
        b"period_us",
        b"hz",
        b"times_ms",
        b"load",
        b"name",
    ]
    return Reader(Texts(SCENARIOS, words, "scenario"), read)


def disb(folder: Path) -> Reader:
    path = folder / "disb.json"
    tasks = [
        {"id": "a", "load": {"type": "continuous"}, "client": {"model_name": "m"}},
        {"id": "b", "load": {"type": "periodic", "frequency": 30, "priority": 1}, "class": "latency", "weight": 50},
        {"client": {"name": "c", "model_name": "m"}, "strategy": {"type": "poisson", "frequency": 5.5}},
        {"id": "d", "load": {"type": "trace", "trace": [0, 5, 9.5]}},
        {"id": "e", "load": {"type": "dependent", "prev_task_ids": ["a", "b"]}},
    ]
    kernels = {"m": 80, "b": [1, 2.5], "d": 1e3, "e": 5}
    seeds = [json.dumps({"time": 5, "kernel_us": kernels, "tasks": tasks}).encode(),
             json.dumps({"time": 0.5, "kernel_us": {"m": [3, 4]}, "tasks": tasks[:1]}, indent=1).encode()]  # fmt: skip

    def read(text: bytes) -> None:
        path.write_bytes(text)
        tenants = check_trace(load_trace(str(path)))
        assert len(tenants) == len(json.loads(text)["tasks"])

    return Reader(
        Texts(seeds, [b"NaN", b"Infinity", b'"id"', b'"load"', b'"type"', b'"trace"', b'"time"'], "disb"), read
    )


def workload(folder: Path) -> Reader:
    """A workload of the artifact of GPreempt, which is DISB's form, and strict."""
    path = folder / "workload.json"
    client = {"model_name": "vgg19", "priority": 0}
    bursts = {"frequency": 20, "peak": 4, "busy": 0.15, "burst_ms": 800, "seconds": 6, "seed": 1}
    tasks = [
        {"id": "a", "load": {"type": "periodic", "frequency": 30}, "client": client},
        {"id": "b", "load": {"type": "bursty", **bursts}, "client": client},
        {"id": "c", "load": {"type": "dependent", "prev_task_ids": ["a"]}, "client": {"model_name": "bfs"}},
        {"id": "d", "load": {"type": "trace", "trace": [0, 5]}, "client": {"model_name": "cc", "name": "d"}},
    ]
    seeds = [json.dumps({"time": 5, "note": "n", "kernel_us": {}, "tasks": tasks}, indent=1).encode()]

    def read(text: bytes) -> None:
        path.write_bytes(text)
        found = config.read(path)
        assert len(found.tasks) == len(json.loads(text)["tasks"])
        assert found.urgent

    return Reader(Texts(seeds, [b"NaN", b"Infinity", b'"seed"', b'"peak"', b'"busy"', b'"priority"'], "workload"), read)


def pai(folder: Path) -> Reader:
    path = folder / "pai.csv"
    tables = (
        """\
j1,tensorflow,2,Terminated,10,600,600,30,50,V100
j2,worker,1,Running,100,,100,10,25,T4
j3,ps,1,Terminated,5,900,,,200,
,,,,,,,,,
""",
        """\
job_name,task_name,inst_num,start_time,end_time,plan_gpu,gpu_type
a,b,1,0,100,100,P100
c,d,3,50,80,10.5,
""",
    )
    seeds = [table.encode() for table in tables]

    def read(text: bytes) -> None:
        path.write_bytes(text)
        tenants = check_trace(load_trace(str(path)))
        digits = {letter for tenant in tenants for letter in str(tenant.start_s)}
        assert digits <= set("0123456789.e-+")

    return Reader(Texts(seeds, [b"\n", b",,", b"start_time", b"plan_gpu", b"inst_num", b'"a,b"', b"1e5"], "pai"), read)


def profiles_given(folder: Path) -> Reader:
    """Profiles of kernels, as Orion's tools and Nsight Compute write them."""
    path = folder / "profiles.csv"
    names = ("Kernel Name", "Block Size", "Grid Size", "CC", "gpu__time_duration.sum", "launch__registers_per_thread",
             "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
             "sm__throughput.avg.pct_of_peak_sustained_elapsed")  # fmt: skip
    launch = ("gemm", "(256, 1, 1)", "(4, 1, 1)", "9.0", "5.5", "32", "9", "80")
    lines = (names, ("", "", "", "", "us", "", "%", "%"), launch)
    nsight = "==PROF== Connected\n" + "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)
    orion = "Name,Profile,Memory_footprint,SM_usage,Duration(ns)\ngemm,1,0,132,21000\ncopy,memory,0,8,300\n"

    def read(text: bytes) -> None:
        path.write_bytes(text)
        assert [profile.wrong(each) for each in profiles.read(path) if profile.wrong(each)] == []

    words = [b"\n", b'"', b"nan", b"1e400", b"(1, 1, 1)", b"(0, 0, 0)", b"==", b"\0", b"99999999999999999999", b"-1"]
    return Reader(Texts([nsight.encode(), orion.encode()], words, "profiles"), read)


def profiles_kept(folder: Path) -> Reader:
    """What is kept of kernels, which somebody may have edited."""
    store = profiles.Store(folder / "profiles")
    known = [profiles.Profile("gemm", Bound.COMPUTE, 132, 21_000), profiles.Profile("copy", Bound.MEMORY, 8, 300)]
    store.put("G", known, "imported")
    path = store.path("G")

    def read(text: bytes) -> None:
        path.write_bytes(text)
        assert [each for each in store.look("G").values() if profile.wrong(each.profile)] == []

    words = [b"\n", b'"sms"', b'"gpu"', b"null", b"NaN", b"1e400", b"[" * 9, b"{" * 9, b'"learned"', b"-1"]
    return Reader(Texts([path.read_bytes()], words, "profiles"), read)


def operations_written(folder: Path) -> Reader:
    """What a program wrote of its operations. A last line that is not whole is none."""
    path = folder / "operations"
    one = {"client": 1, "kind": 1, "operation_class": 2, "sms": 66, "called_ns": 10, "launched_ns": 20, "done_ns": 30}
    lines = [{"runlist_operations": 1, "pid": 7}, {**one, "name": "gemm"}, {**one, "client": 0}, {"lost": 4}]
    seeds = ["".join(json.dumps(line) + "\n" for line in lines).encode()]

    def read(text: bytes) -> None:
        path.write_bytes(text)
        found = operations_log.read(path)
        assert found.lost >= 0
        assert all(0 <= each.client < 2**63 and isinstance(each.name, str) for each in found.operations)

    words = [b"\n", b'"pid"', b'"lost"', b'"client"', b'"done_ns"', b"NaN", b"1e400", b"[" * 9]
    return Reader(Texts(seeds, words, "operations"), read)
