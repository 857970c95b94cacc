"""Readers of files: rules, and traces of the three kinds."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from runlist.daemon.placement.rules import Over, Rules
from runlist.sim.traces import load_trace
from runlist.sim.workload import MAX_SECONDS, TenantSpec, Trace
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
        for rule, table in zip(found._rules, said.get("rule", []), strict=True):
            assert rule.settings == {key: str(value) for key, value in table.get("set", {}).items()}
            assert rule.where.startswith("rules.toml:")

    words = [b"[[rule]]\n", b"[limits]\n", b"set", b"user", b"command", b"over", b"memory", b"deadline", b"rule.set"]
    return Reader(Texts(RULES, words, "rules"), read)


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
