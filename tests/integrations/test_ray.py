"""What Ray's `num_gpus` becomes, with a stand-in for the few calls of Ray's: tests/node/test_ray.py has Ray itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runlist
import runlist.ray
from runlist.errors import NotSupportedError, RunlistError, UsageError
from runlist.integrations.ray import hook, worker
from runlist.integrations.ray.shares import Options, settings_of, share_of
from runlist.integrations.ray.worker import Worker
from tests.fixtures.daemon import ROOT, Commands, Daemon

GB = 1 << 30


# -- what a part becomes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "gpus", "share"),
    [
        ({"GPU": 0.25, "CPU": 1.0}, ["0"], 0.25),
        ({"GPU": 1.0}, ["3"], 1),
        ({"GPU": 2.0}, ["0", "1"], 1),
        ({"GPU": 0}, [], 0),
        ({"CPU": 4.0}, [], 0),
        ({}, [], 0),
        ({"GPU": None}, [], 0),
        ({"GPU": 0.5}, [], 0.5),  # where Ray leaves the choice to somebody else
        ({"GPU": 2.0}, [], 1),
        ({"GPU": -1.0}, ["0"], 0),
    ],
)
def test_the_part_of_each_gpu(resources: dict[str, float], gpus: list[str], share: float) -> None:
    assert share_of(resources, gpus) == share


@pytest.mark.parametrize(
    ("share", "settings"),
    [
        (0.25, {"weight": "25", "class": "batch", "cap": "25", "memory": str(20 * GB)}),
        (0.335, {"weight": "34", "class": "batch", "cap": "33.5", "memory": str(int(0.335 * 80 * GB))}),
        (0.0001, {"weight": "1", "class": "batch", "cap": "1", "memory": str(int(0.0001 * 80 * GB))}),
        (1.0, {"weight": "100", "class": "batch", "cap": "max", "memory": "max"}),
    ],
)
def test_the_settings_of_a_part(share: float, settings: dict[str, str]) -> None:
    assert settings_of(share, Options(cap=True, memory=True, task_class="batch"), 80 * GB) == settings
    assert settings_of(share, Options(), 80 * GB) == {"weight": settings["weight"]}
    assert "memory" not in settings_of(share, Options(memory=True), None)


def test_options() -> None:
    assert Options.parse("") == Options()
    assert Options.parse(" Cap, memory,class=Batch ") == Options(True, True, "batch")
    assert Options.parse(Options(True, False, "latency").words()) == Options(True, False, "latency")
    for wrong in ("weight", "cap=30", "class", "class=", "class=urgent", "class=deadline", "memory=1G", "no"):
        with pytest.raises(UsageError):
            Options.parse(wrong)


def test_the_runtime_environment() -> None:
    assert runlist.ray.runtime_env() == {"worker_process_setup_hook": "runlist.ray.setup"}
    made = runlist.ray.runtime_env(cap=True, task_class="batch", env_vars={"A": "b"}, pip=["x"])
    assert made == {
        "worker_process_setup_hook": "runlist.ray.setup",
        "env_vars": {"A": "b", "RUNLIST_RAY": "cap,class=batch"},
        "pip": ["x"],
    }
    variables = runlist.ray.runtime_env(memory=True, env_vars={"LD_PRELOAD": "libm.so.6"})["env_vars"]
    assert variables["LD_PRELOAD"] == f"{runlist.library()}:libm.so.6"
    assert int(variables["RUNLIST_MEMORY"]) > 1 << 45
    with pytest.raises(UsageError):
        runlist.ray.runtime_env(task_class="urgent")


def test_a_script_that_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hook = {"worker_process_setup_hook": "runlist.ray.setup"}
    monkeypatch.setenv("RUNLIST_RAY", "cap")
    made = {**hook, "env_vars": {"RUNLIST_RAY": "cap"}}
    assert runlist.ray.extended(None) == runlist.ray.extended({}) == runlist.ray.extended(made) == made
    given = {"env_vars": {"A": "b"}, "working_dir": "."}
    assert runlist.ray.extended(given) == {**hook, "env_vars": {"A": "b", "RUNLIST_RAY": "cap"}, "working_dir": "."}
    assert given == {"env_vars": {"A": "b"}, "working_dir": "."}
    assert capsys.readouterr().err == ""
    own = {"worker_process_setup_hook": "theirs.setup"}
    assert runlist.ray.extended(own) == own
    monkeypatch.setenv("RUNLIST_RAY", "caps")
    assert runlist.ray.extended(given) == given
    first, second = capsys.readouterr().err.splitlines()
    assert "of its own" in first
    assert "caps is no option" in second


# -- the place in Ray ------------------------------------------------------------------------------


class Ray:
    """The calls of Ray's that are made, and what they answer."""

    def __init__(self, version: str = "2.60.0") -> None:
        self.__version__ = version
        self.resources: dict[str, float] = {}
        self.gpus: list[str] = []
        self.calls = 0
        self.utils = SimpleNamespace(set_visible_accelerator_ids=self.set_visible_accelerator_ids)

    def set_visible_accelerator_ids(self) -> dict[str, None]:
        self.calls += 1
        return {"CUDA_VISIBLE_DEVICES": None}

    def get_runtime_context(self) -> Ray:
        return self

    def get_assigned_resources(self) -> dict[str, float]:
        return self.resources

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": self.gpus, "TPU": []}

    def run(self, part: float, gpus: int = 1) -> Any:
        """As Ray does before a task."""
        self.resources, self.gpus = (
            {"GPU": part} if part else {"CPU": 1.0},
            [str(n) for n in range(gpus if part else 0)],
        )
        return self.utils.set_visible_accelerator_ids()


class Said(list[str]):
    """Lines that would be on standard error."""

    def __call__(self, line: str) -> None:
        self.append(line)


class Layers:
    """In place of `runlist.managing`: what is asked of it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, str]]] = []
        self.errors: list[Exception] = []

    def begin(self, settings: dict[str, str], *, patience_s: float) -> Any:
        assert patience_s <= 10
        if self.errors:
            raise self.errors.pop(0)
        kept = dict(settings)
        self.log.append(("begin", kept))
        return SimpleNamespace(end=lambda: self.log.append(("end", kept)), renew=lambda: None)


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Layers:
    made = Layers()
    monkeypatch.setattr(worker.managing, "begin", made.begin)
    return made


def test_settings_follow_the_tasks_of_a_worker(layers: Layers) -> None:
    ray, said = Ray(), Said()
    hook.install(ray, ray.utils, Worker(Options(), said))
    assert ray.run(0.25) == {"CUDA_VISIBLE_DEVICES": None}  # Ray puts that back
    ray.run(0.75)
    ray.run(0)
    ray.run(0)
    ray.run(2, gpus=2)
    quarter, most, whole = ({"weight": weight} for weight in ("25", "75", "100"))
    assert layers.log == [("begin", quarter), ("begin", most), ("end", quarter), ("end", most), ("begin", whole)]
    assert (ray.calls, said) == (5, [])


def test_it_is_installed_once(layers: Layers) -> None:
    ray = Ray()
    for _ in range(2):
        hook.install(ray, ray.utils, Worker(Options(), Said()))
    ray.run(0.5)
    assert [what for what, _ in layers.log] == ["begin"]


@pytest.mark.parametrize(
    ("version", "says"),
    [("2.8.1", "is older than 2.9"), ("3.0.0", "is newer than 2"), ("main", "says nothing"), ("", "says nothing")],
)
def test_another_version_of_ray_is_left_alone(version: str, says: str) -> None:
    ray = Ray(version)
    before = ray.utils.set_visible_accelerator_ids
    with pytest.raises(RunlistError, match=says):
        hook.install(ray, ray.utils, Worker(Options(), Said()))
    assert ray.utils.set_visible_accelerator_ids == before


@pytest.mark.parametrize("found", [None, 7, lambda ids: ids, lambda *ids: ids, lambda ids=(): ids])
def test_a_ray_that_does_it_in_another_way_is_left_alone(found: object) -> None:
    ray = Ray()
    ray.utils.set_visible_accelerator_ids = found
    with pytest.raises(RunlistError, match="in another way"):
        hook.install(ray, ray.utils, Worker(Options(), Said()))
    assert ray.utils.set_visible_accelerator_ids is found


def test_a_task_never_fails_because_of_us(layers: Layers) -> None:
    ray, said = Ray(), Said()
    hook.install(ray, ray.utils, Worker(Options(), said))
    layers.errors = [RunlistError("no daemon"), RunlistError("no daemon"), ZeroDivisionError("ours")]
    for _ in range(3):
        assert ray.run(0.25) == {"CUDA_VISIBLE_DEVICES": None}
    assert [line.partition(": ")[2] for line in said] == ["no daemon", "ZeroDivisionError: ours"]  # each once
    ray.run(0.5)
    assert layers.log == [("begin", {"weight": "50"})]
    ray.get_assigned_resources = lambda: None  # Ray changed
    assert ray.run(0.25) == {"CUDA_VISIBLE_DEVICES": None}
    assert len(said) == 3


def test_a_refused_task_is_not_managed_as_the_one_before(layers: Layers) -> None:
    ray = Ray()
    hook.install(ray, ray.utils, Worker(Options(), Said()))
    ray.run(0.25)
    layers.errors = [RunlistError("no room")]
    ray.run(0.75)
    assert layers.log == [("begin", {"weight": "25"}), ("end", {"weight": "25"})]


def test_an_error_of_rays_own_is_rays(layers: Layers) -> None:
    ray = Ray()

    def fails() -> None:
        raise KeyError("Ray's")

    ray.utils.set_visible_accelerator_ids = fails
    hook.install(ray, ray.utils, Worker(Options(), Said()))
    with pytest.raises(KeyError):
        ray.run(0.25)
    assert not layers.log


def test_memory_is_a_part_of_the_smallest_gpu(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        worker, "gpu_sizes", lambda plane: asked.append(1) or {"0": 80 * GB, "1": 40 * GB, "GPU-x": 16 * GB}
    )
    ray, said = Ray(), Said()
    hook.install(ray, ray.utils, Worker(Options(memory=True), said))
    ray.run(0.5)
    ray.run(1, gpus=2)
    ray.resources, ray.gpus = {"GPU": 0.25}, ["GPU-x"]
    ray.utils.set_visible_accelerator_ids()
    ray.gpus = ["MIG-y"]  # nobody knows what that one has
    ray.utils.set_visible_accelerator_ids()
    begun = [settings.get("memory") for what, settings in layers.log if what == "begin"]
    assert begun == [str(40 * GB), str(20 * GB), str(4 * GB), None]
    assert len(asked) == 1  # before there was any quota
    layers.errors = [NotSupportedError("its memory cannot be limited from outside")]
    ray.run(0.75)
    assert layers.log[-2] == ("begin", {"weight": "75"})  # the rest is kept
    assert said == ["num_gpus is no memory quota: its memory cannot be limited from outside"]


def test_memory_of_a_gpu_that_is_named_by_the_beginning_of_its_uuid(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUDA_VISIBLE_DEVICES may name it, where no other's begins so."""
    sizes = {"0": 80 * GB, "GPU-8932f937-d72c": 80 * GB, "1": 40 * GB, "GPU-89aa0000-1111": 40 * GB}
    monkeypatch.setattr(worker, "gpu_sizes", lambda plane: sizes)
    ray = Ray()
    hook.install(ray, ray.utils, Worker(Options(memory=True), Said()))
    for gpu in ("GPU-8932f937", "GPU-89", "GPU-"):
        ray.resources, ray.gpus = {"GPU": 0.5}, [gpu]
        ray.utils.set_visible_accelerator_ids()
    begun = [settings.get("memory") for what, settings in layers.log if what == "begin"]
    assert begun == [str(40 * GB), None, None]


def test_memory_without_nvml(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(plane: object) -> dict[str, int]:
        raise NotSupportedError("NVML does not answer")

    monkeypatch.setattr(worker, "gpu_sizes", fails)
    ray, said = Ray(), Said()
    hook.install(ray, ray.utils, Worker(Options(memory=True), said))
    ray.run(0.5)
    ray.run(0.25)
    assert [settings for what, settings in layers.log if what == "begin"] == [{"weight": "50"}, {"weight": "25"}]
    assert said == ["num_gpus is no memory quota: NVML does not answer"]


# -- with a daemon ---------------------------------------------------------------------------------

WORKER = """
import os, time
import runlist
from runlist.integrations.ray import hook
from runlist.integrations.ray.shares import Options
from runlist.integrations.ray.worker import Worker
from runlist.workloads.gpu import Gpu

worker = Worker(Options.parse(os.environ["RUNLIST_RAY"]), hook.say)

def task(part):
    worker.next_task({"GPU": part}, ["0"] if part else [])

def look(there=True):
    with runlist.Client.open() as client:
        until = time.monotonic() + 20
        while True:
            mine = [task for task in client.ps() if task.pid == os.getpid()]
            if mine or not there or time.monotonic() > until:
                break
            time.sleep(0.02)
    print([(one.task_class, one.weight, one.cap_percent, one.memory_limit_bytes) for one in mine])
"""


def run(commands: Commands, text: str, **variables: str) -> tuple[list[str], str]:
    environment = {**commands.environment, "RUNLIST_RAY": "", **variables}
    done = subprocess.run(
        [sys.executable, "-c", WORKER + text], env=environment, cwd=ROOT, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_worker_with_a_daemon(commands: Commands, daemon: Daemon) -> None:
    whole = 150_754_820_096  # of an emulated GPU
    environment = runlist.ray.runtime_env(cap=True, memory=True, task_class="batch")["env_vars"]
    lines, errors = run(
        commands,
        "task(0.25); gpu = Gpu(0); look(); task(0.5); look(); task(0); look(there=False); task(1); look()",
        **environment,
    )
    assert errors == ""
    assert lines == [
        str([("batch", 25, 25.0, whole // 4)]),
        str([("batch", 50, 50.0, whole // 2)]),
        "[]",
        str([("batch", 100, None, None)]),
    ]


def test_a_worker_under_run_keeps_what_that_says(commands: Commands, daemon: Daemon) -> None:
    words = ["run", "--class", "latency", "--cap", "60", "--", sys.executable, "-c"]
    text = WORKER + "task(0.25); gpu = Gpu(0); look(); task(0); look()"
    commands.environment["RUNLIST_RAY"] = ""
    lines = commands.ok(*words, text, cwd=ROOT).splitlines()
    assert lines == [str([("latency", 25, 60.0, None)]), str([("latency", 100, 60.0, None)])]


def test_a_daemon_that_is_started_again_is_told_of_an_actor_that_goes_on(
    commands: Commands, start_daemon: Callable[..., Daemon]
) -> None:
    """An actor is made once, and serves for weeks; daemons are updated meanwhile."""
    daemon, whole = start_daemon(), 150_754_820_096
    environment = runlist.ray.runtime_env(cap=True, memory=True)["env_vars"]
    text = "from runlist.integrations.ray import worker as module; module.LOOK_S = 0.2\n"
    text += "task(0.25); gpu = Gpu(0); look(); print('made', flush=True); input(); look(); task(0); look(there=False)"
    words = [sys.executable, "-c", WORKER + text]
    with subprocess.Popen(
        words, env={**commands.environment, **environment}, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as actor:  # fmt: skip
        assert actor.stdout is not None
        before = actor.stdout.readline()
        assert actor.stdout.readline() == "made\n"
        daemon.kill()
        start_daemon()
        rest, errors = actor.communicate("\n", timeout=60)
    assert before == f"{[('normal', 25, 25.0, whole // 4)]}\n"
    assert rest == f"{before}[]\n"
    assert errors == ""


def test_a_worker_without_the_library_has_all_but_a_quota(commands: Commands, daemon: Daemon) -> None:
    lines, errors = run(commands, "task(0.25); gpu = Gpu(0); look()", RUNLIST_RAY="cap,memory")
    assert lines == [str([("normal", 25, 25.0, None)])]
    (line,) = errors.splitlines()
    assert line.startswith("runlist: num_gpus is no memory quota: ")


def test_a_worker_without_a_daemon_runs_as_it_would(commands: Commands, tmp_path: Path) -> None:
    """None runs, and none can be started."""
    lines, errors = run(commands, "task(0.25); task(0.5); print('ran')", RUNLIST_EMULATED_GPU=str(tmp_path))
    assert lines == ["ran"]
    (line,) = errors.splitlines()
    assert line.startswith("runlist: Ray's num_gpus is not kept: ")


def test_setup_without_ray_and_with_bad_options_is_one_line(commands: Commands, tmp_path: Path) -> None:
    for name, text in (("ray", "raise ImportError('no ray')"), ("words", "")):
        folder = tmp_path / name
        (folder / "ray" / "_private").mkdir(parents=True)
        (folder / "ray" / "__init__.py").write_text(text or "__version__ = '2.60.0'")
        (folder / "ray" / "_private" / "__init__.py").write_text("")
        (folder / "ray" / "_private" / "utils.py").write_text("def set_visible_accelerator_ids(): pass")
        done = subprocess.run(
            [sys.executable, "-c", "import runlist.ray.everywhere; print('on')"],
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "RUNLIST_RAY": "caps"},
            text=True, capture_output=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "on\n")
        (line,) = done.stderr.splitlines()
        assert line.startswith("runlist: Ray's num_gpus is not kept: ")
