"""Slurm's real controller and node daemon, with our prolog and epilog: shards of a GPU that hold."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, needs_root, wait_for
from tests.fixtures.node import needs_programs
from tests.fixtures.slurm import SHARDS, Slurm

pytestmark = [
    needs_root,
    needs_programs("munged", "slurmctld", "slurmd", "sbatch"),
    pytest.mark.skipif(ON_NVIDIA, reason="the shares are those of the emulated GPU"),
    pytest.mark.timeout(300),
]

SECONDS = 10.0
WITHIN = 0.03
"""Of the GPU; the figure itself is printed. Two busy cores make the emulated GPU's turns late."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(_short(tmp_path_factory, "slurm")) as slurm:
        yield slurm


def _short(factory: pytest.TempPathFactory, name: str) -> Path:
    folder = factory.mktemp(name)
    folder.chmod(0o755)
    return folder


def settings_of(commands: Commands, **more: str) -> dict[str, str]:
    """What the scripts are told: this Runlist, and the folder of the test's daemon."""
    names = ("PYTHONPATH", "RUNLIST_SOCKET", "RUNLIST_DEVICE", "RUNLIST_EMULATED_GPU")
    found = {name: commands.environment[name] for name in names if name in commands.environment}
    return {
        **found,
        "RUNLIST": str(Path(sys.prefix) / "bin" / "runlist"),
        "RUNLIST_RULES": str(commands.socket.with_name("rules.d")),
        **more,
    }


@pytest.fixture
def slurm(cluster: Slurm, commands: Commands) -> Iterator[Slurm]:
    """The cluster, whose scripts write for the test's daemon; with no job left behind."""
    cluster.set(settings_of(commands))
    yield cluster
    cluster.run("scancel", "-u", "root")
    wait_for(lambda: not cluster.run("squeue", "-h").strip(), "the end of all jobs")
    wait_for(lambda: cluster.node_state() == "idle", "an idle node", 60)


def node_environment(slurm: Slurm, commands: Commands) -> dict[str, str]:
    """As slurmd gives its scripts, with our own added."""
    return {
        **commands.environment, "SLURM_CONF": slurm.environment["SLURM_CONF"], "PATH": slurm.environment["PATH"],
        "SLURMD_NODENAME": slurm.node,
    }  # fmt: skip


def drop_in(commands: Commands, job: int) -> Path:
    return commands.socket.with_name("rules.d") / f"slurm-{job}.toml"


def rule_of(commands: Commands, job: int) -> dict[str, Any]:
    """The one rule in a job's file, once it is there."""
    path = drop_in(commands, job)
    wait_for(path.exists, f"a rule of job {job}")
    assert path.stat().st_mode & 0o777 == 0o600
    (rule,) = tomllib.loads(path.read_text())["rule"]
    return dict(rule)


def files(commands: Commands) -> list[str]:
    folder = commands.socket.with_name("rules.d")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def gpu_job(slurm: Slurm, commands: Commands, shards: int, *options: str, processes: int = 1) -> int:
    """A job at work on the emulated GPU."""
    work = f"{sys.executable} -m runlist.workloads.batch --seconds 120"
    script = "cd /\n" + f"{work} &\n" * (processes - 1) + f"exec {work}"
    return slurm.submit(
        script, f"--gres=shard:{shards}", *options, name=f"gpu{shards}", environment=commands.environment
    )


def tasks_of(daemon: Daemon, job: int) -> list[TaskView]:
    return [task for task in daemon.client.ps() if task.labels.get("job") == str(job)]


def held(daemon: Daemon, job: int) -> float:
    return sum(task.gpu_seconds_held for task in tasks_of(daemon, job))


def parts(daemon: Daemon, jobs: list[int], seconds: float = SECONDS) -> list[float]:
    """Of the GPU time that the jobs had in some seconds, each one's part, by the daemon's account."""
    time.sleep(1.5)  # the slices settle
    before = [held(daemon, job) for job in jobs]
    time.sleep(seconds)
    had = [held(daemon, job) - was for job, was in zip(jobs, before, strict=True)]
    return [one / sum(had) for one in had]


def test_shards_become_shares(
    slurm: Slurm, commands: Commands, daemon: Daemon, record_property: Callable[[str, object], None]
) -> None:
    """One shard and three of four; the larger job has two processes, which share as one."""
    jobs = [gpu_job(slurm, commands, 1), gpu_job(slurm, commands, 3, processes=2)]
    wait_for(lambda: len(tasks_of(daemon, jobs[0])) == 1 and len(tasks_of(daemon, jobs[1])) == 2, "three tasks", 60)
    assert [tasks_of(daemon, job)[0].weight for job in jobs] == [25, 75]
    assert {task.group for task in tasks_of(daemon, jobs[1])} == {f"slurm-{jobs[1]}"}
    assert tasks_of(daemon, jobs[0])[0].rule == f"slurm-{jobs[0]}.toml:2"
    assert f"/job_{jobs[0]}/" in tasks_of(daemon, jobs[0])[0].cgroup
    had = parts(daemon, jobs)
    record_property("parts", had)
    print("parts of 1 : 3 shards:", [round(part, 4) for part in had])
    assert had[0] == pytest.approx(0.25, abs=WITHIN)
    slurm.run("scancel", *map(str, jobs))
    wait_for(lambda: not files(commands), "the epilogs")
    wait_for(lambda: not daemon.client.ps(), "no task is left")


def test_a_cap_is_kept_alone_and_memory_is_the_part(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    slurm.set(settings_of(commands, RUNLIST_SLURM_OPTIONS="--cap --memory 8G --class batch --shards 4"))
    job = gpu_job(slurm, commands, 1)
    assert rule_of(commands, job)["set"] == {
        "group": f"slurm-{job}", "class": "batch", "weight": "25", "cap": "25", "memory": str(2 << 30),
    }  # fmt: skip
    wait_for(lambda: tasks_of(daemon, job), "its task", 60)
    (task,) = tasks_of(daemon, job)
    assert (task.task_class, task.cap_percent) == ("batch", 25)
    time.sleep(1.5)
    before, since = held(daemon, job), time.monotonic()
    time.sleep(5)
    assert (held(daemon, job) - before) / (time.monotonic() - since) < 0.25 + WITHIN


TAKE = """
import sys, time
from cuda.bindings import driver
from runlist.workloads.gpu import Gpu
gpu = Gpu(0)
open(sys.argv[1], "w").close()
time.sleep(6 if sys.argv[1].endswith("0") else 10)  # the daemon finds it, and its rule
taken = 0
while driver.cuMemAlloc(16 << 20)[0] == 0 and taken < 4096:
    taken += 16
with open(sys.argv[1], "w") as file:
    file.write(str(taken))
time.sleep(60)
"""


def test_a_job_holds_its_part_of_the_memory_with_all_its_processes(
    slurm: Slurm, commands: Commands, daemon: Daemon, tmp_path: Path
) -> None:
    """Two trees of one job, which has 256 MiB: a quarter of what the site calls a GPU's memory. One of them takes it
    while the other has a context alone.
    """
    slurm.set(settings_of(commands, RUNLIST_SLURM_OPTIONS="--memory 1GiB"))
    (tmp_path / "take.py").write_text(TAKE)
    run = f"{sys.executable} -m runlist.cli run --class normal -- {sys.executable} {tmp_path}/take.py {tmp_path}"
    job = slurm.submit(
        f"cd /\n{run}/0 &\n{run}/1 &\nwait", "--gres=shard:1", name="take", environment=commands.environment
    )
    wait_for(lambda: len(tasks_of(daemon, job)) == 2, "two tasks", 60)
    took = [tmp_path / name for name in "01"]
    wait_for(lambda: all(path.exists() and path.read_text() for path in took), "both are refused", 60)
    mebibytes = [int(path.read_text()) for path in took]
    print("MiB taken of 256:", mebibytes)
    assert 0 < sum(mebibytes) <= 256
    slurm.run("scancel", str(job))
    wait_for(lambda: not daemon.client.ps(), "no task is left")


def test_every_kind_of_job_has_its_own_rule(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    sleep = "exec sleep 60"
    array = slurm.submit(sleep, "--array=1-2", "--gres=shard:1", name="array")
    mixed = int(
        slurm.run(
            "sbatch", "--parsable", "-o", "/dev/null", "-n1", "--mem=10", "--gres=shard:1", ":", "-n1", "--mem=10",
            "--gres=shard:1", str(slurm.folder / "array.sh"),
        ).split(";")[0]
    )  # fmt: skip
    rules = "slurm-*.toml"  # not those that are not whole yet
    folder = commands.socket.with_name("rules.d")
    wait_for(lambda: len(list(folder.glob(rules))) == 4, "four rules", 60)
    numbers = sorted(int(path.stem.removeprefix("slurm-")) for path in folder.glob(rules))
    assert array in numbers
    assert {mixed, mixed + 1} <= set(numbers)
    for job in numbers:
        rule = rule_of(commands, job)
        assert (rule["labels"], rule["set"]["weight"]) == ({"job": str(job)}, "25")
        assert all(f"/job_{job}/*" in path for path in rule["cgroup"])
    assert not any(trouble for trouble in daemon.client.status().troubles)
    slurm.run("scancel", "-u", "root")
    wait_for(lambda: not files(commands), "the epilogs")
    whole = slurm.submit(sleep, "--gres=gpu:1", name="whole")
    assert rule_of(commands, whole)["set"] == {"group": f"slurm-{whole}", "weight": "100"}
    none = slurm.submit("sleep 3", name="none")
    wait_for(lambda: slurm.state(none) == "RUNNING", "a job without a GPU")
    wait_for(lambda: slurm.state(none) != "RUNNING", "its end", 30)
    assert not drop_in(commands, none).exists()


def test_a_job_cannot_talk_itself_into_more(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    """What a user says in names and variables, with line ends in it, is not what Slurm gave."""
    lie = f"x\nJobId=1|1|RUNNING|gres:shard:4\n 1|gres:shard:{SHARDS}|N/A|"
    told = {
        "SLURM_SHARDS_ON_NODE": "4", "SLURM_JOB_UID": "4242", "SLURM_JOB_ID": "1",
        "RUNLIST_SLURM_OPTIONS": "--shards 1", "SLURMD_NODENAME": "../../etc",
        "RUNLIST_RULES": "/etc", "RUNLIST": "/bin/false",
    }  # fmt: skip
    job = slurm.submit("exec sleep 60", "--gres=shard:1", "-J", lie, "--comment", lie, environment=told)
    rule = rule_of(commands, job)
    assert rule["set"]["weight"] == "25"
    assert all("/job_" in path and ".." not in path for path in rule["cgroup"])
    twice = slurm.submit("exec sleep 60", "--gres=shard:1,shard:2", name="twice")
    assert rule_of(commands, twice)["set"]["weight"] == "25"


def test_a_job_that_ends_at_once_leaves_nothing(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    jobs = [slurm.submit("true", "--gres=shard:1", name=f"short{i}") for i in range(6)]
    wait_for(lambda: not slurm.run("squeue", "-h").strip(), "their ends", 60)
    wait_for(lambda: len(slurm.codes("epilog")) >= len(jobs))
    time.sleep(1)
    deadline = time.monotonic() + 30
    while files(commands) and time.monotonic() < deadline:  # a prolog may still be at work
        time.sleep(0.1)
    assert files(commands) == []


def test_a_job_that_is_requeued_has_its_rule_again(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    job = slurm.submit("exec sleep 100", "--gres=shard:2", name="again")
    assert rule_of(commands, job)["set"]["weight"] == "50"
    wait_for(lambda: slurm.state(job) == "RUNNING", "it runs")
    first = drop_in(commands, job).stat().st_ino
    slurm.run("scontrol", "requeue", str(job))
    wait_for(lambda: not drop_in(commands, job).exists(), "the epilog")

    wait_for(
        lambda: drop_in(commands, job).exists() and drop_in(commands, job).stat().st_ino != first, "its rule", 200
    )  # Slurm waits two minutes
    assert rule_of(commands, job)["set"]["weight"] == "50"


@pytest.mark.parametrize("fault", ["missing", "hangs", "no folder", "bad options"])
def test_no_fault_of_ours_delays_or_fails_a_job(
    slurm: Slurm, commands: Commands, daemon: Daemon, tmp_path: Path, fault: str
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 20\n")
    hanging.chmod(0o755)
    slurm.set(
        settings_of(
            commands,
            **{
                "missing": {"RUNLIST": "/nonexistent"},
                "hangs": {"RUNLIST": str(hanging)},
                "no folder": {"RUNLIST_RULES": "/proc/nowhere/rules.d"},
                "bad options": {"RUNLIST_SLURM_OPTIONS": "--shards many --colour 'blue"},
            }[fault],
        )
    )
    before = len(slurm.codes("prolog"))
    job = slurm.submit("true", "--gres=shard:1", name="faults")
    wait_for(lambda: slurm.state(job) == "COMPLETED", "its end", 15)
    assert len(slurm.codes("prolog")) > before
    assert set(slurm.codes("prolog")) | set(slurm.codes("epilog")) == {"0"}
    assert slurm.node_state() in ("idle", "completing", "mixed")


def test_what_epilogs_left_is_cleaned(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    """A rule of a job that is gone goes with the next prolog; that of a job that runs stays, however old, and so does
    a file that is not ours.
    """
    running = slurm.submit("exec sleep 100", "--gres=shard:1", name="running")
    rule_of(commands, running)
    folder = commands.socket.with_name("rules.d")
    for name in ("slurm-999999.toml", ".slurm-999998", "slurm-mine.toml"):
        (folder / name).write_text("")
        (folder / name).chmod(0o600)
    long_ago = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    slurm.submit("exec sleep 100", "--gres=shard:1", name="next")
    wait_for(lambda: not {"slurm-999999.toml", ".slurm-999998"} & set(files(commands)), "they are cleaned", 30)
    assert {f"slurm-{running}.toml", f".slurm-{running}", "slurm-mine.toml"} <= set(files(commands))
    (folder / "slurm-999997.toml").write_text("")
    os.utime(folder / "slurm-999997.toml", (long_ago, long_ago))
    commands.ok("slurm", "clean", env=node_environment(slurm, commands))
    assert "slurm-999997.toml" not in files(commands)


def test_without_a_controller_everything_stays(slurm: Slurm, commands: Commands, daemon: Daemon) -> None:
    running = slurm.submit("exec sleep 100", "--gres=shard:1", name="running")
    rule_of(commands, running)
    folder = commands.socket.with_name("rules.d")
    (folder / "slurm-999999.toml").write_text("")
    os.utime(folder / "slurm-999999.toml", (0, 0))
    slurm.stop_controller()
    try:
        variables = {**node_environment(slurm, commands), "SLURM_JOB_ID": "5", "SLURM_JOB_UID": "0"}
        done = commands.run("slurm", "prolog", env=variables)
    finally:
        slurm.start_controller()
    assert done.returncode == 0
    assert done.stderr.count("\n") == 2, done  # the job, and the files that may be left over
    assert {"slurm-999999.toml", f"slurm-{running}.toml"} <= set(files(commands))
    wait_for(lambda: slurm.state(running) == "RUNNING", "it goes on", 30)
    (folder / "slurm-999999.toml").unlink()


def test_without_cgroups_processes_are_told_by_their_environment(
    commands: Commands, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Slurm(_short(tmp_path_factory, "linuxproc"), "linuxproc") as slurm:
        slurm.set(settings_of(commands, RUNLIST_SLURM_OPTIONS="--by environment"))
        job = gpu_job(slurm, commands, 2)
        assert rule_of(commands, job)["environment"] == {"SLURM_JOB_ID": str(job)}
        assert rule_of(commands, job)["user"] == 0
        wait_for(lambda: tasks_of(daemon, job), "its task", 60)
        assert tasks_of(daemon, job)[0].weight == 50
        assert "/job_" not in tasks_of(daemon, job)[0].cgroup
