"""Tasks as people see them: everything that is known of one, and who holds what memory."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from runlist import wire
from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.gpus import Gpus as DaemonGpus
from runlist.daemon.gpu.ledger import ENDED
from runlist.daemon.memory.quota import Quota
from runlist.daemon.requests import tenants, view
from runlist.daemon.requests.messages import TenantMessage
from runlist.daemon.requests.tenants import hear
from runlist.daemon.requests.view import gpu_views, views, workload_views
from runlist.daemon.tasks.managed import Count, ManagedTask, Root, Sms
from runlist.frames import MAX_FRAME
from runlist.model import Cap, Deadline, Share, Task, TaskClass, TaskKey
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.discover import Discoverer
from runlist.planes.nvidia.rm.client import RmClient
from runlist.planes.process.region import create, gpu_key
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, NO_LIMIT, SLOT, SLOTS_AT
from runlist.policies import PolicySpec, load_policy
from runlist.proc.process import pid_namespace, start_of
from runlist.tenant import Kind
from runlist.views.structs import GpuView
from tests.fixtures.fake_rm import UUIDS, FakeRm
from tests.fixtures.scheduler import World
from tests.fixtures.usage import FakeSource

GPU = UUIDS[0]
KEY = TaskKey(7, GPU)


class Gpus:
    """One GPU whose scheduler says little."""

    def __init__(self) -> None:
        self.source = FakeSource("switch log")
        self.accounting = Accounting(GPU, self.source)
        self.policy_name = "priority"
        self.reason = "because of"

    def scheduler(self, gpu: str) -> Any:
        assert gpu == GPU
        return self

    def fellows(self, task: Task) -> list[int]:
        return []

    def why(self, key: TaskKey) -> str:
        return f"{self.reason} {key.pid}"

    def giving_way(self) -> None:
        return None

    def read_usage(self, *_: float) -> None:
        self.accounting.read(time.monotonic())


class NoNvml:
    def mps_clients(self, gpu: str) -> set[int]:
        return set()

    def by_pid(self, gpu: str) -> dict[int, int]:
        return {}

    def size_of(self, gpu: str) -> None:
        return None


def managed(**values: Any) -> ManagedTask:
    fields: dict[str, Any] = {
        "key": KEY, "task_class": TaskClass.BATCH, "command": "python train.py", "uid": 1000, "since": 0.0,
    }  # fmt: skip
    return ManagedTask(Task(**{**fields, **values}))


def one(task: ManagedTask, gpus: Gpus | None = None, memory: Any = None) -> Any:
    (seen,) = views([task], gpus or Gpus(), memory or NoNvml())  # type: ignore[arg-type]
    return seen


def test_a_task_of_which_nothing_is_known_yet() -> None:
    seen = one(managed())
    assert (seen.pid, seen.gpu, seen.task_class, seen.command, seen.user) == (7, GPU, "batch", "python train.py", 1000)
    assert (seen.timeslice_us, seen.enabled, seen.suspended, seen.corrections) == (None, True, False, 0)
    assert (seen.weight, seen.cap_percent, seen.budget_us, seen.period_us) == (100, None, None, None)
    assert (seen.target_p99_us, seen.p99_us, seen.segment, seen.group, seen.rule) == (None, None, None, "", "")
    assert (seen.share_1s, seen.share_60s, seen.history, seen.turns_per_s, seen.memory_bytes) == (0, 0, [], 0, None)
    assert (seen.usage_source, seen.policy, seen.why) == ("switch log", "priority", "because of 7")
    assert (seen.groups, seen.channels) == (0, 0)


def test_one_that_stands_alone_has_no_part_of_the_sms() -> None:
    task, gpus = managed(), Gpus()
    task.sms = Sms(54, 40)
    seen = one(task, gpus)
    assert (seen.shares, seen.together, seen.sms, seen.sms_percent) == ("time", [], None, None)
    gpus.fellows = lambda task: [9, 8]  # type: ignore[method-assign]
    seen = one(task, gpus)
    assert (seen.shares, seen.together, seen.sms, seen.sms_percent) == ("SMs", [8, 9], 54, 40)


def test_a_workload_tells_how_many_of_its_tasks_have_ended() -> None:
    mine, folded = Counter({ENDED: 3.0, "ran_s": 1.25}), Counter({"ran_s": 0.5})
    workloads = [
        SimpleNamespace(who=SimpleNamespace(uid=7, container="c", labels={"app": "x"}), counts=mine),
        SimpleNamespace(who=None, counts=folded),
    ]
    scheduler = SimpleNamespace(gpu=GPU, ledger=SimpleNamespace(workloads=lambda: workloads))
    gpus: Any = SimpleNamespace(read_usage=lambda kept_s: None, all=lambda: [scheduler])
    own, other = workload_views(gpus, 0)
    assert (own.user, own.container, own.labels, own.folded, own.tasks_ended) == (7, "c", {"app": "x"}, False, 3)
    assert (other.user, other.container, other.labels, other.folded, other.tasks_ended) == (None, "", {}, True, 0)
    assert [each.user for each in workload_views(gpus, 7)] == [7]
    assert list(workload_views(gpus, 8)) == []


def test_what_was_decided_is_told_of_one_moment() -> None:
    """Each view is made when it is taken, and who has the tiny slice changes meanwhile: nobody sees two of them."""
    tasks = [managed(), managed(key=TaskKey(8, GPU))]
    tasks[0].share = Share(timeslice_us=1)
    tasks[1].share = Share(timeslice_us=2048, enabled=False)
    gpus = Gpus()
    made = views(tasks, gpus, NoNvml())  # type: ignore[arg-type]
    seen = [next(made)]
    tasks[0].share, tasks[1].share = tasks[1].share, tasks[0].share
    gpus.reason = "later, because of"
    tasks[1].task = replace(tasks[1].task, weight=7)
    seen += made
    assert [(one.timeslice_us, one.enabled, one.weight) for one in seen] == [(1, True, 100), (2048, False, 100)]
    assert [one.why for one in seen] == ["because of 7", "because of 8"]


def test_what_was_asked_for() -> None:
    seen = one(
        managed(
            task_class=TaskClass.DEADLINE,
            weight=300,
            cap=Cap(33_333, 100_000, 5_000),
            deadline=Deadline(5_000, 20_000),
            target_p99_us=1500.0,
            segment=0,
            group="mine",
            suspended=True,
        )
    )
    assert (seen.task_class, seen.weight, seen.cap_percent) == ("deadline", 300, 33.333)
    assert (seen.budget_us, seen.period_us, seen.target_p99_us) == (5_000, 20_000, 1500.0)
    assert (seen.segment, seen.group, seen.suspended) == (0, "mine", True)


def test_what_is_in_force() -> None:
    task = managed(timeslice_us=9_000)
    task.share = Share(4_000, enabled=False, until=3.0)
    task.rule, task.discovery_ms, task.attach_ms = "rules.toml:3", 1.23456, 7.0
    task.counts[Count.SLICES_PUT_BACK] = 2
    seen = one(task)
    assert (seen.timeslice_us, seen.enabled) == (4_000, False)  # not what the user fixed and is not set yet
    assert (seen.rule, seen.corrections, seen.discovery_ms, seen.attach_ms) == ("rules.toml:3", 2, 1.235, 7.0)


def test_the_inside_of_a_process_and_how_it_was_reached(tmp_path: Path) -> None:
    _, region = create(tmp_path, strict=True)
    task = managed(key=TaskKey(os.getpid(), GPU), cap=Cap.of_percent(30))
    task.root, task.reached_by = Root(1, -1, 0, {}, quota=Quota(region)), "lent"
    task.root.quota.set_limit(8 << 30)
    seen = one(task)
    assert (seen.memory_limit_bytes, seen.memory_overhead_bytes, seen.memory_bytes) == (8 << 30, None, None)
    assert (seen.reached_by, seen.cap_by) == ("lent", "driver")
    assert seen.enforcement.startswith("not loaded: ")

    fd = region.fileno()
    key = {"identity": os.getpid() | 1 << 32, "start_time": start_of(os.getpid()), "pid_namespace": pid_namespace()}
    os.pwrite(fd, DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)
    os.pwrite(fd, SLOT.pack(enforced=3, use=[100, 20], **key), SLOTS_AT)
    os.pwrite(fd, b"\1", HEADER.offsets["slots_used"])
    task.root.quota.set_limit(9 << 30)  # it is read again
    seen = one(task)
    assert (seen.memory_limit_bytes, seen.memory_overhead_bytes, seen.memory_bytes) == (9 << 30, 20, 120)
    assert seen.enforcement == "memory, queries"

    task.reached_by, task.outside = "", "not managed: no right"
    task.root.quota.set_cap(0.3, asked=True)
    seen = one(task)
    assert (seen.reached_by, seen.cap_by, seen.why) == ("", "process", "not managed: no right")
    task.task, task.reached_by = replace(task.task, cap=None), "own right"
    assert (one(task).cap_by, one(task).cap_percent) == ("process", 30.0)
    os.pwrite(fd, DEVICE.pack(key=gpu_key(GPU), cap_value=NO_LIMIT), DEVICES_AT)  # only other GPUs are capped
    task.root.quota._read_at = 0.0
    assert (one(task).cap_by, one(task).cap_percent) == ("", None)
    os.ftruncate(fd, 5)
    task.root.quota._read_at = 0.0
    assert one(task).enforcement == "not loaded: it has 5 bytes, not 2361472: of another version, or damaged"


def test_groups_and_channels_of_all_contexts() -> None:
    rm = FakeRm()
    file = rm.tenant(7)
    client = file.client()
    device = client.device()
    client.context(device)
    client.context(device)
    (found,) = Discoverer(rm).discover(7, -1, rm)
    task = managed()
    task.contexts[1] = GpuContext(RmClient(file, found.client), found.gpus[0])
    seen = one(task)
    assert (seen.groups, seen.channels) == (8, 40)


def test_usage_up_to_now() -> None:
    gpus = Gpus()
    begin = time.monotonic()
    for seconds, share in ((1.5, 0.3), (3.0, 0.6)):
        gpus.source.hold(7, share * 1.5, turns=30)
        gpus.accounting.read(begin + seconds)
    seen = one(managed(), gpus)
    assert seen.history == pytest.approx([0.3, 0.6], abs=0.01)
    assert seen.share_1s == seen.history[-1]
    assert seen.share_60s == pytest.approx(0.45, abs=0.01)
    assert seen.turns_per_s == pytest.approx(20, abs=0.5)
    gpus.source.hold(7, 0.5)
    gpus.accounting.read_at = 0.0
    one(managed(), gpus)
    assert gpus.accounting.of(7).usage.held_s == pytest.approx(1.85)  # looking reads


def report(managed: ManagedTask, scheduler: Any, milliseconds: float) -> None:
    message = TenantMessage(Kind.REPORT_LATENCY, 0, 0, round(milliseconds * 1e6))
    hear({scheduler: managed}, message, lambda _: True)


@pytest.mark.parametrize("every_s", [0.01, 0.3], ids=["often", "seldom"])
def test_the_p99_that_is_shown_is_the_one_that_slo_acts_on(
    world: World, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    for module in (view, tenants):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=world.clock.monotonic))
    slo: Any = load_policy(PolicySpec())
    world.use(slo, "priority")
    service = world.add(1, TaskClass.LATENCY, target_p99_us=10_000.0)
    world.add(2)
    world.run()
    gpus = SimpleNamespace(scheduler=lambda gpu: world.scheduler, read_usage=lambda kept_s: None)
    assert one(service, gpus).p99_us is None
    seen = set()
    for number in range(400):
        latency_ms = 1 + number * 7 % 40 * 0.2 + number // 4 * 0.01
        world.do(partial(report, service, world.scheduler, latency_ms))
        world.pass_time(every_s)
        world.run()
        shown = one(service, gpus)
        said = re.match(r"p99 ([0-9.]+) ms of 10 ms", shown.why)
        if said is not None and slo._looked == world.clock.now:  # else it is of an earlier moment
            assert f"{shown.p99_us / 1e3:.3g}" == f"{float(said[1]):.3g}"
            seen.add(said[1])
    assert len(seen) > 3
    world.pass_time(60)
    assert one(service, gpus).p99_us is None


# -- counters --------------------------------------------------------------------------------------


def test_the_counters_of_a_task() -> None:
    gpus, task = Gpus(), managed()
    gpus.source.hold(7, 1.5, turns=30, idle_s=0.25)
    task.counts.update({Count.SUSPENSIONS: 4, Count.SLICES_PUT_BACK: 2})
    gpus.accounting.read_at = 0.0
    seen = one(task, gpus)
    assert (seen.gpu_seconds_held, seen.gpu_seconds_idle, seen.gpu_seconds_worked) == (1.5, 0.25, 1.25)
    assert (seen.switches, seen.suspensions, seen.slices_put_back, seen.corrections) == (30, 4, 2, 2)
    assert seen.memory_refusals == 0


def test_the_counters_of_a_gpu_keep_those_of_tasks_that_ended(world: World, tmp_path: Path) -> None:
    gpus = SimpleNamespace(all=lambda: [world.scheduler], read_usage=lambda kept_s: None)
    roots = [Root(number, -1, 0, {}, quota=Quota(create(tmp_path, strict=True)[1])) for number in (1, 2)]

    def refuse(root: Root, count: int) -> None:
        assert root.quota._region is not None
        os.pwrite(root.quota._region.fileno(), DEVICE.pack(key=gpu_key(GPU), refusals=count), DEVICES_AT)

    def seen(*living: Root) -> GpuView:
        (gpu,) = gpu_views(gpus, NoNvml(), living, "emulated")  # type: ignore[arg-type]
        return gpu

    def counters() -> tuple[float, ...]:
        gpu = seen(*roots)
        return gpu.gpu_seconds_held, gpu.switches, gpu.suspensions, gpu.slices_put_back, gpu.memory_refusals

    before = seen()
    assert (before.gpu, before.driver, before.policy, before.tasks) == (GPU, "emulated", "own", 0)
    assert (before.memory_size_bytes, before.memory_used_bytes, before.records_lost) == (None, None, 0)
    first, second = world.add(1), world.add(2)
    for enabled in (False, True, False):
        world.do(partial(first.set_enabled, enabled))
    second.counts[Count.SLICES_PUT_BACK] = 3
    world.source.hold(1, 0.5, turns=4, dropped=9)
    world.source.hold(3, 0.25, turns=1)  # not managed
    world.pass_time(0.1)
    world.run()
    for root, count in zip(roots, (5, 6), strict=True):
        refuse(root, count)
    assert counters() == (0.75, 5, 2, 3, 11)
    assert (seen().records_lost, seen().tasks) == (9, 2)
    for task in (first, second):
        world.do(partial(world.scheduler.remove, task.task.key))
    ended = roots.pop()
    refuse(ended, 8)
    ended.quota.close()
    DaemonGpus.tree_ended(SimpleNamespace(_schedulers={GPU: world.scheduler}), ended)  # type: ignore[arg-type]
    assert counters() == (0.75, 5, 2, 3, 13)
    refuse(roots[0], (1 << 64) - 1)  # a tree may say what it likes
    roots[0].quota._read_at = 0.0
    assert msgspec.json.decode(msgspec.json.encode(seen(*roots)))["memory_refusals"] == (1 << 63) - 1


def test_command_lines_leave_room_for_one_another() -> None:
    tasks = [managed(key=TaskKey(pid, GPU)) for pid in range(1000)]
    for task in tasks:
        task.command_line = "x" * (32 << 10)
    seen = list(views(tasks, Gpus(), NoNvml()))  # type: ignore[arg-type]
    assert len(wire.encode(wire.Tasks(seen))) < MAX_FRAME / 2
    assert 4000 < len(seen[0].command_line) < 5000
    assert one(tasks[0]).command_line == tasks[0].command_line


@pytest.mark.parametrize("letter", ["\U0001f600", '"', "é"])
def test_command_lines_have_room_whatever_letters_they_are_of(letter: str) -> None:
    """A frame is bounded in bytes: who has many processes could keep root from seeing any."""
    tasks = [managed(key=TaskKey(pid, GPU)) for pid in range(600)]
    for task in tasks:
        task.command_line = letter * ((32 << 10) // len(letter.encode()))
    seen = list(views(tasks, Gpus(), NoNvml()))  # type: ignore[arg-type]
    assert len(wire.encode(wire.Tasks(seen))) < MAX_FRAME * 0.6
    assert set(seen[0].command_line) == {letter}


def test_it_shows_the_memory_of_its_process() -> None:
    memory: Any = NoNvml()
    memory.by_pid = lambda gpu: {7: 3 << 30}
    assert one(managed(), memory=memory).memory_bytes == 3 << 30
    assert one(managed(key=TaskKey(9, GPU)), memory=memory).memory_bytes is None
