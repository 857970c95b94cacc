"""What the exporter tells of what a daemon says: names, labels, sums, and counters that never go down."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from runlist import wire
from runlist.integrations.exporter import names, serve
from runlist.integrations.exporter.dialects import Device
from runlist.integrations.exporter.families import Metrics, written
from runlist.integrations.exporter.look import Look
from runlist.integrations.exporter.workloads import Workloads
from runlist.views.columns import user_name
from runlist.views.fields import Kind, fields
from runlist.views.structs import DaemonView, GpuView, TaskView, WorkloadView
from tests.fixtures.daemon import ROOT, short_path
from tests.fixtures.fake_daemon import FakeDaemon, StartFake, fake, gpu_view, start_fake, status, view

__all__ = ["fake", "short_path", "start_fake"]

GPU = "GPU-4e3db026-c5f4"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def workload(pod: str = "", held: float = 1.0, user: int | None = 0, **values: Any) -> WorkloadView:
    labels = {"pod": pod, "namespace": "shop", "container": "main"} if pod else {}
    return WorkloadView(**{"gpu": GPU, "user": user, "labels": labels, "gpu_seconds_held": held, **values})


def pod(name: str, **values: Any) -> TaskView:
    return view(labels={"pod": name, "namespace": "shop", "container": "main"}, **values)


def look(*workloads: WorkloadView, tasks: Any = (), started: float = 1.0, **values: Any) -> Look:
    return Look(0.01, status(started_s=started, **{"gpus": [gpu_view()], **values}), list(tasks), list(workloads))


def samples(text: bytes, parse: Any = parse_text) -> Samples:
    """All samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def told(metrics: Metrics, seen: Look) -> Samples:
    return samples(written(metrics.families(seen), openmetrics=False)[1])


def of(found: Samples, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    matching = [value for (one, has), value in found.items() if one == name and labels.items() <= dict(has).items()]
    assert matching, f"no {name} {labels}"
    return math.fsum(matching)


def labels_of(found: Samples, name: str) -> list[dict[str, str]]:
    return [dict(has) for one, has in found if one == name]


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "metrics"), [(TaskView, names.TASKS), (GpuView, names.GPUS), (DaemonView, names.DAEMON),
                          (WorkloadView, names.WORKLOAD_COUNTERS)]
)  # fmt: skip
def test_every_number_of_a_view_is_a_metric_or_is_left_out_for_a_reason(kind: Any, metrics: Any) -> None:
    numbers = {name for name, field in fields(kind).items() if field.kind is not Kind.LABEL}
    left_out = numbers & names.LEFT_OUT.keys() if kind is TaskView else set()
    assert {metric.field for metric in metrics} == numbers - left_out


ALL = [*names.WORKLOAD_COUNTERS, *names.WORKLOAD_GAUGES, *names.TASKS, *names.GPUS, *names.DAEMON]


def test_names_are_by_the_conventions() -> None:
    found = [metric.name for metric in ALL] + [extra.name for extra in names.EXTRAS]
    assert len(found) == len(set(found))
    for metric in ALL:
        assert metric.name.startswith("runlist_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not {"us", "ms", "mb", "percent", "s"} & set(metric.name.split("_")), "base units, in whole words"
        for unit in ("seconds", "bytes", "ratio"):
            assert unit not in metric.family.split("_") or metric.family.endswith(unit)
    assert {"runlist_workload_gpu_held_seconds_total", "runlist_gpu_held_seconds_total", "runlist_gpu_share_ratio",
            "runlist_workload_memory_limit_bytes", "runlist_workload_p99_target_seconds"} <= set(found)  # fmt: skip


def test_the_documents_say_the_same() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "make_metrics", "--check"], check=True)


# -- values ----------------------------------------------------------------------------------------


def test_values_come_in_base_units() -> None:
    seen = look(
        workload("web", 12.5, gpu_seconds_worked=10.0, gpu_seconds_idle=2.5, switches=7, memory_refusals=3),
        tasks=[
            pod("web", pid=1, cap_percent=30.0, p99_us=2500.0, target_p99_us=5000.0, group="a",
                memory_limit_bytes=1 << 30, memory_bytes=1000, share_1s=0.25, weight=300),
            pod("web", pid=2, p99_us=1500.0, target_p99_us=4000.0, group="a", suspended=True,
                memory_limit_bytes=1 << 30, memory_bytes=500, share_1s=0.5, weight=300, task_class="latency"),
        ],
        waiting=["process 5"], others_waiting=2, troubles=["lost"],
    )  # fmt: skip
    found = told(Metrics(1000), seen)
    web = {"pod": "web", "namespace": "shop", "container": "main", "gpu": GPU, "user": "root"}
    assert of(found, "runlist_workload_gpu_held_seconds_total", **web) == 12.5
    assert of(found, "runlist_workload_gpu_worked_seconds_total", **web) == 10
    assert of(found, "runlist_workload_gpu_idle_seconds_total", **web) == 2.5
    assert of(found, "runlist_workload_switches_total", **web) == 7
    assert of(found, "runlist_workload_memory_refusals_total", **web) == 3
    assert of(found, "runlist_workload_share_ratio", **web) == 0.75
    assert of(found, "runlist_workload_cap_ratio", **web) == pytest.approx(0.3)
    assert of(found, "runlist_workload_p99_seconds", **web) == pytest.approx(0.0025)
    assert of(found, "runlist_workload_p99_target_seconds", **web) == pytest.approx(0.004)
    assert of(found, "runlist_workload_memory_used_bytes", **web) == 1500
    assert of(found, "runlist_workload_memory_limit_bytes", **web) == 1 << 30  # they share one
    assert of(found, "runlist_workload_memory_limit_held_ratio", **web) == 1500 / (1 << 30)
    assert of(found, "runlist_workload_weight", **web) == 300
    assert of(found, "runlist_workload_tasks_suspended", **web) == 1
    assert of(found, "runlist_workload_tasks", **web, **{"class": "latency"}) == 1
    assert of(found, "runlist_workload_tasks", **web, **{"class": "batch"}) == 1
    assert of(found, "runlist_gpu_held_seconds_total", gpu=GPU) == 90
    assert of(found, "runlist_gpu_memory_size_bytes", gpu=GPU) == 140 << 30
    assert of(found, "runlist_gpu_info", gpu=GPU, policy="priority", usage_source="switch log") == 1
    assert of(found, "runlist_daemon_waiting_tasks") == 3
    assert of(found, "runlist_daemon_troubles") == 1
    assert of(found, "runlist_up") == 1
    assert not [name for name, _ in found if name.startswith("runlist_task_")], "no series by process unless asked for"


def test_a_limit_that_containers_share_is_held_by_all_of_them() -> None:
    """And not as full as each of them alone has it: their sum would be twice the limit."""
    shared = {"memory_limit_bytes": 1000, "group": "pod:shop/web"}
    tasks = [
        view(pid=pid, memory_bytes=held, labels={"pod": "web", "container": name}, **shared)
        for pid, name, held in ((1, "main", 600), (2, "side", 300))
    ]
    tasks.append(view(pid=3, memory_bytes=100, labels={"pod": "own"}, memory_limit_bytes=400, group=""))
    tasks.append(view(pid=4, memory_bytes=100, labels={"pod": "free"}))
    found = told(Metrics(1000), look(tasks=tasks))
    ratio = "runlist_workload_memory_limit_held_ratio"
    assert {has.get("container", has["pod"]): of(found, ratio, **has) for has in labels_of(found, ratio)} == {
        "main": 0.9, "side": 0.9, "own": 0.25,
    }  # fmt: skip


def test_processes_come_on_request_without_their_command_lines() -> None:
    secret = "train.py --token hunter2"
    tasks = [pod("web", pid=pid, command=secret, command_line=secret, why=secret, submissions=5) for pid in (1, 2)]
    found = told(Metrics(1000, per_process=True), look(workload("web"), tasks=tasks))
    assert of(found, "runlist_task_gpu_held_seconds_total", pid="1", pod="web") == 0
    assert of(found, "runlist_task_submissions_total", pid="2") == 5
    assert of(found, "runlist_task_info", pid="2", **{"class": "batch", "policy": "priority"}) == 1
    assert "hunter2" not in str(found)
    assert of(found, "runlist_exporter_tasks_left_out") == 0


def test_series_by_process_are_bounded() -> None:
    found = told(Metrics(500, per_process=True), look(tasks=[pod("web", pid=pid) for pid in range(1, 400)]))
    assert 0 < len(labels_of(found, "runlist_task_info")) < 40
    assert of(found, "runlist_exporter_tasks_left_out") + len(labels_of(found, "runlist_task_info")) == 399
    assert len([name for name, _ in found if name.startswith(("runlist_task_", "runlist_workload_"))]) <= 500


@pytest.mark.parametrize(
    ("labels", "container", "expected"),
    [
        ({"job": "4711"}, "c" * 64, {"job_id": "4711"}),
        ({"unit": "train.service", "workload": "w"}, "", {"unit": "train.service", "workload": "w"}),
        ({"team": "a", "queue": "q"}, "", {"label_team": "a", "label_queue": "q"}),
        ({}, "c0ffee" * 10, {"container_id": "c0ffeec0ffee"}),
        ({"pod": ""}, "", {}),
        ({"Bad-Name": "x", "instance": "i"}, "", {"label_instance": "i"}),
    ],
)
def test_who_it_is(labels: dict[str, str], container: str, expected: dict[str, str]) -> None:
    seen = look(workload(labels=labels, container=container, user=0), tasks=[view(labels=labels, container=container)])
    found = told(Metrics(1000), seen)
    want = {"gpu": GPU, "user": "root", **expected}
    assert labels_of(found, "runlist_workload_gpu_held_seconds_total") == [want]
    assert labels_of(found, "runlist_workload_tasks") == [{**want, "class": "batch"}]


def test_users_without_a_name_have_their_number() -> None:
    found = told(Metrics(1000), look(workload(user=4_000_000_000)))
    assert labels_of(found, "runlist_workload_gpu_held_seconds_total") == [{"gpu": GPU, "user": "4000000000"}]
    assert user_name(0) == "root"


NASTY = [
    'say "hi"',
    "a\nb",
    "back\\slash\\n",
    '"}\nrunlist_up 7\n#',
    "ünïcode 漢字",
    "\\",
    "x" * 5000,
    " ",
    "\x85\u2028",
    "{}=,",
]


@pytest.mark.parametrize(("value", "openmetrics"), list(itertools.product(NASTY, [False, True])))
def test_values_of_labels_come_back_as_they_were(value: str, openmetrics: bool) -> None:
    seen = look(workload(labels={"pod": value}), tasks=[view(labels={"pod": value})])
    _, text = written(Metrics(1000).families(seen), openmetrics=openmetrics)
    found = samples(text, parse_openmetrics if openmetrics else parse_text)
    assert labels_of(found, "runlist_workload_gpu_held_seconds_total")[0]["pod"] == value[:253]
    assert of(found, "runlist_up") == 1


class Families(Collector):
    """For the library's own writers."""

    def __init__(self, families: Any) -> None:
        self.families = families

    def collect(self) -> Any:
        return self.families


@pytest.mark.parametrize("openmetrics", [False, True])
def test_it_is_written_as_the_library_writes_it(openmetrics: bool) -> None:
    seen = look(*(workload(labels={"pod": value, "team": "a"}) for value in NASTY), tasks=[pod("web", pid=1)])
    families = Metrics(5000, per_process=True).families(seen)
    families[0].samples[0] = families[0].samples[0]._replace(value=math.inf)
    theirs = (generate_openmetrics if openmetrics else generate_latest)(Families(families))
    ours = written(families, openmetrics=openmetrics)[1]
    parse = parse_openmetrics if openmetrics else parse_text
    assert samples(ours, parse) == samples(theirs, parse)
    comments = [[line for line in text.splitlines() if line.startswith(b"#")] for text in (ours, theirs)]
    assert comments[0] == comments[1]


def test_what_is_no_text_is_told_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(workload(labels={"pod": "a\udc80b"}))
    assert b'pod="a?b"' in written(Metrics(1000).families(seen), openmetrics=False)[1]


# -- counters --------------------------------------------------------------------------------------


def held(rows: Any) -> dict[str, float]:
    return {row.labels.get("pod", "rest"): round(row.counters["gpu_seconds_held"], 9) for row in rows}


def test_the_oldest_that_ended_become_one_series_and_sums_stay() -> None:
    made = Workloads(2)
    ended = [workload(f"p{number}", number) for number in (1, 2, 3)]
    live = [workload("live", 10)]
    rows = made.rows([*ended, *live], [pod("live")], "daemon")
    assert held(rows) == {"live": 10, "p3": 3, "rest": 3}
    assert made.folded == 2
    assert [row.labels for row in rows if "pod" not in row.labels] == [{"gpu": GPU, "folded": "true"}]
    rows = made.rows([*ended, workload("live", 11)], [pod("live")], "daemon")
    assert held(rows) == {"live": 11, "p3": 3, "rest": 3}


def test_one_that_was_folded_and_comes_back_counts_on_and_nothing_goes_down() -> None:
    made = Workloads(1)
    first = made.rows([workload("old", 5), workload("live", 10)], [pod("live")], "daemon")
    assert held(first) == {"live": 10, "rest": 5}
    second = made.rows([workload("old", 6), workload("live", 10)], [pod("old")], "daemon")  # it has tasks, live none
    assert held(second) == {"old": 1, "rest": 15}
    third = made.rows([workload("live", 12), workload("old", 6)], [], "daemon")
    assert sum(held(third).values()) == 18
    assert held(third)["rest"] >= 15


def test_what_the_daemon_folds_itself_stays_in_the_sum() -> None:
    made = Workloads(1)
    assert held(made.rows([workload("a", 1), workload("b", 2)], [], "d")) == {"b": 2, "rest": 1}
    folded = workload(held=1, user=None, folded=True)
    assert held(made.rows([folded, workload("b", 2), workload("c", 4)], [], "d")) == {"c": 4, "rest": 3}


def test_no_counter_goes_down_whatever_comes_and_goes() -> None:
    import random

    draw = random.Random(7)
    made, totals, before = Workloads(4), dict.fromkeys(range(12), 0.0), {}
    order: list[int] = []
    for _ in range(300):
        live = draw.sample(range(12), 3)
        for one in live:
            totals[one] += draw.random()
        order = [one for one in order if one not in live] + live
        rows = made.rows([workload(f"p{one}", totals[one]) for one in order], [pod(f"p{one}") for one in live], "d")
        now = held(rows)
        assert math.isclose(sum(now.values()), sum(totals[one] for one in order), rel_tol=1e-6)
        assert now["rest"] >= before.get("rest", 0) - 1e-6 if "rest" in now else "rest" not in before
        before |= now
        assert len(now) <= 5


def test_with_another_daemon_all_begins_anew() -> None:
    """A reset, which Prometheus understands: what a counter was is of no matter to the new one."""
    made = Workloads(1)
    made.rows([workload("a", 5), workload("b", 6)], [], (1, 1.0))
    assert held(made.rows([workload("a", 1), workload("b", 2)], [], (2, 2.0))) == {"b": 2, "rest": 1}


def test_max_series_bounds_what_is_told() -> None:
    many = [workload(f"pod-{number}", 1.0) for number in range(1000)]
    found = told(Metrics(400), look(*many, tasks=[pod(f"pod-{number}", pid=number + 1) for number in range(500)]))
    ours = [name for name, _ in found if name.startswith("runlist_workload_")]
    assert len(ours) <= 400
    assert of(found, "runlist_workload_gpu_held_seconds_total") == 1000
    assert of(found, "runlist_workload_tasks") == 500
    assert of(found, "runlist_exporter_workloads_folded") > 900
    assert of(found, "runlist_workload_gpu_held_seconds_total", folded="true") > 900


# -- names of others -------------------------------------------------------------------------------


def exporter(*dialects: str, **values: Any) -> serve.Exporter:
    return serve.Exporter(serve.Options(None, dialects, **values))


def test_names_of_others_in_their_units(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_devices", lambda device: {GPU: Device(0, "NVIDIA H200")})
    fake.tasks = [
        pod("web", pid=1, share_1s=0.25, memory_bytes=1 << 30, memory_limit_bytes=2 << 30, group="a"),
        pod("web", pid=2, share_1s=0.25, memory_bytes=1 << 30, memory_limit_bytes=2 << 30, group="a"),
        view(pid=3, share_1s=0.125, memory_bytes=1 << 20),
    ]
    fake.status = status(gpus=[gpu_view(share_1s=0.75, memory_used_bytes=4 << 30, memory_size_bytes=8 << 30)])
    made = exporter("dcgm", "kai", "hami")
    found = samples(made.text(made.look(), openmetrics=False)[1])
    web = {"pod": "web", "namespace": "shop", "container": "main"}
    device = {"gpu": "0", "UUID": GPU, "device": "nvidia0", "modelName": "NVIDIA H200"}
    assert of(found, "DCGM_FI_DEV_GPU_UTIL", **device, **web) == 50
    assert of(found, "DCGM_FI_DEV_GPU_UTIL", **device) == 75  # the whole GPU's
    assert of(found, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", **device, **web) == 0.5
    assert of(found, "DCGM_FI_DEV_FB_USED", **device, **web) == 2048
    assert of(found, "DCGM_FI_DEV_FB_USED", **device) == 4096
    assert of(found, "DCGM_FI_DEV_FB_FREE", **device) == 4096
    kai = {"pod": "web", "namespace": "shop", "gpu_uuid": GPU, "gpu": "0"}
    assert of(found, "gpu_fractioning_gpu_memory_used_bytes", **kai) == 2 << 30
    assert of(found, "gpu_fractioning_gpu_sm_utilization_percent", **kai) == 50
    hami = {**web, "device_uuid": GPU, "vdevice_index": "0"}
    assert of(found, "hami_vgpu_memory_used_bytes", **hami) == 2 << 30
    assert of(found, "hami_vgpu_memory_limit_bytes", **hami) == 2 << 30
    assert of(found, "hami_container_device_utilization_ratio", **hami) == 50
    assert (
        of(found, "hami_host_gpu_utilization_ratio", device_uuid=GPU, device_index="0", device_type="NVIDIA H200") == 75
    )


@pytest.mark.parametrize("known", [{}, {"memory_used_bytes": 4 << 30}, {"memory_size_bytes": 8 << 30}])
def test_what_nobody_knows_of_a_gpu_has_no_name_of_others(fake: FakeDaemon, known: dict[str, int]) -> None:
    """Neither a driver that numbers it, nor how much memory it has, or how much of that is held."""
    fake.status = status(gpus=[gpu_view(**{"memory_used_bytes": None, "memory_size_bytes": None, **known})])
    made = exporter("dcgm", "hami")
    found = samples(made.text(made.look(), openmetrics=False)[1])
    names = {name for name, _ in found if name.startswith("DCGM_FI_DEV_FB_")}
    fields = {"memory_used_bytes": "DCGM_FI_DEV_FB_USED", "memory_size_bytes": "DCGM_FI_DEV_FB_TOTAL"}
    assert names == {fields[field] for field in known}
    assert labels_of(found, "DCGM_FI_DEV_GPU_UTIL") == [{"UUID": GPU}]
    assert labels_of(found, "hami_host_gpu_utilization_ratio") == [{"device_uuid": GPU}]


# -- daemons that are not there, or not as they should be ------------------------------------------


def test_without_a_daemon_it_says_so_and_looks_again(start_fake: StartFake, capsys: pytest.CaptureFixture[str]) -> None:
    made = exporter()
    for _ in range(2):
        found = samples(made.text(made.look(), openmetrics=False)[1])
        assert of(found, "runlist_up") == 0
        assert not [name for name, _ in found if name.startswith(("runlist_gpu", "runlist_workload", "runlist_daemon"))]
    daemon = start_fake()
    assert of(samples(made.text(made.look(), openmetrics=True)[1], parse_openmetrics), "runlist_up") == 1
    daemon.close()
    assert of(samples(made.text(made.look(), openmetrics=False)[1]), "runlist_up") == 0
    start_fake()
    assert of(samples(made.text(made.look(), openmetrics=False)[1]), "runlist_up") == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4, said  # each change, once
    assert "no daemon runs" in said[0]


@pytest.mark.parametrize(
    "answer",
    [wire.Failure("no such request", 1), b"\x02\x00\x00\x00{}", b"\xff\xff\xff\xff", b"\x00", wire.Tasks([])],
    ids=["refusal", "not ours", "too long", "half", "another answer"],
)
def test_a_daemon_of_another_version_is_none(fake: FakeDaemon, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PATIENCE_S", 0.3)
    made = exporter()
    fake.answers[wire.ListWorkloads] = answer
    found = samples(made.text(made.look(), openmetrics=False)[1])
    assert of(found, "runlist_up") == 0
    del fake.answers[wire.ListWorkloads]
    assert of(samples(made.text(made.look(), openmetrics=False)[1]), "runlist_up") == 1


def test_a_daemon_that_says_nothing_is_none_soon(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PATIENCE_S", 0.3)
    fake.answers[wire.GetStatus] = None
    assert exporter().look().status is None


# -- words and files -------------------------------------------------------------------------------


def test_only_this_command_needs_the_library() -> None:
    code = "import sys, runlist.cli\nprint(any(name.startswith('prometheus_client') for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_without_the_library_one_line_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['prometheus_client'] = None\nfrom runlist.cli import main\n"
        "sys.argv = ['runlist', 'exporter']\nmain(['exporter', '--once'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr == "runlist: the exporter needs prometheus-client: pip install 'runlist[metrics]'\n"


def test_it_is_told_of_a_view_that_an_older_daemon_sends() -> None:
    """A status without the time of its start."""
    old = msgspec.json.decode(msgspec.json.encode(status()), type=DaemonView)
    assert of(told(Metrics(1000), Look(0.1, old)), "runlist_daemon_start_time_seconds") == 0
