"""The device that the tests run on, and processes that use it.

RUNLIST_DEVICE=nvidia takes the real GPU; otherwise an emulated one is started, once for the session.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from runlist.emulated import EmulatedGpu
from runlist.planes.process.region import ready
from runlist.workloads.process import WorkloadProcess
from tests.fixtures.leftovers import end_all
from tests.fixtures.parallel import LastResort, told_at_once

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # children of tests use no gRPC; its handlers may hang them

ON_NVIDIA = os.environ.get("RUNLIST_DEVICE") == "nvidia"
ENVIRONMENT = dict(os.environ)  # before any test sets something

TESTS = Path(__file__).parent
Tenant = Callable[..., WorkloadProcess]


def pytest_configure(config: pytest.Config) -> None:
    # How long a test takes is no matter of the code alone: two cores are shared by everything that runs. What fails is
    # not made smaller, which may take longer than a test has: then nobody would hear what failed.
    hypothesis.settings.register_profile(
        "runlist",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate),
        print_blob=True,
    )
    hypothesis.settings.load_profile("runlist")
    # A shell that starts us in the background has SIGINT ignored, and `nohup` SIGHUP, and so would all that the tests
    # start and send these to.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    ready()  # opens a descriptor for good: it is no test's that counts them
    worker = getattr(config, "workerinput", None)  # the environment is also that of a run that a test starts
    if worker is None:
        config.pluginmanager.register(_TellAtOnce(config))
        return
    config.pluginmanager.register(LastResort())
    if [Path(word).resolve() for word in config.args] == [TESTS]:
        _import_part(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.fixtures.parallel import Files

    return Files(config, log)


class _TellAtOnce:
    """In the process that people look at."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write(f"\n{told_at_once(report)}\n")  # behind the dots, of which nobody knows how many are there


def _import_part(number: int, count: int) -> None:
    """Import another part of the files of tests in each process: what one has compiled the others need not."""
    gc.disable()  # as in a collection
    files = sorted(path for path in TESTS.glob("*/test_*.py") if path.parent.name != "node")
    for path in files[number::count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # its collection tells
            importlib.import_module(f"tests.{path.parent.name}.{path.stem}")


LONG = (
    "emulated/test_kernel_plane.py", "native/test_sanitizers.py", "emulated/test_gpreempt_artifact.py",
    "hostile/test_lies.py", "emulated/test_actuator.py", "emulated/test_attacks.py", "emulated/test_sharing_sms.py",
    "integrations/test_node_faults.py", "emulated/test_giving_way.py", "emulated/test_scheduling.py",
    "hostile/test_quota.py", "native/test_operations_random.py", "emulated/test_managing.py",
    "emulated/test_memory_limits.py", "emulated/test_commands.py", "emulated/test_bench_pairs.py",
    "emulated/test_announcements.py", "hostile/test_output.py", "emulated/test_kernel_plane_places.py",
    "unit/test_policies_announcements.py", "integrations/test_node_hostile.py", "kernel/test_policy_map.py",
    "emulated/test_announcing_servers.py", "unit/test_policies_any.py", "emulated/test_keeper.py",
    "emulated/test_refusals.py", "emulated/test_usage.py", "hostile/test_deep_trees.py",
    "native/test_operations_filters.py", "emulated/test_demo.py", "integrations/test_node.py",
    "process/test_daemon.py", "kernel/test_capture.py", "emulated/test_sharing_storms.py",
    "integrations/test_node_api.py", "hostile/test_budgets.py", "native/test_preload_filters.py",
    "planes/test_smoke.py", "emulated/test_kernel_plane_gaps.py", "hostile/test_parsers.py", "hostile/test_room.py",
    "hostile/test_first_runs.py", "layout/test_source_distribution.py", "layout/test_docs_site.py",
    "emulated/test_operations.py", "integrations/test_exporter_daemon.py", "native/test_cap.py",
    "native/test_preload_messages.py", "emulated/test_rules_and_limits.py",
)  # fmt: skip
"""Files that take longest, the longest first: where several run at once, none of them is begun last."""

COMPUTING = ("blocks", "layout", "unit")
"""Folders whose tests compute more than they wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = {TESTS / name: place for place, name in enumerate(LONG)}
    files = sorted({item.path for item in items}, key=lambda path: (long.get(path, len(long)), path))
    places = _spread(files)
    items.sort(key=lambda item: (places[item.path], item.path))
    if not ON_NVIDIA:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a real GPU: make test-gpu"))


def _spread(files: list[Path]) -> dict[Path, float]:
    """Places in this order, but for those that compute, which are spread among those that wait: all the time there are
    some of both, and no processor is without work.
    """
    computing = [path for path in files if path.relative_to(TESTS).parts[0] in COMPUTING]
    waiting = [path for path in files if path not in set(computing)]
    return {path: place / len(those) for those in (computing, waiting) for place, path in enumerate(those)}


def pytest_collectstart() -> None:
    gc.disable()  # what is made meanwhile stays: looking for garbage in it takes a fifth of the time


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests are no garbage: collections skip them
    gc.set_threshold(10_000)  # new objects: with 700, tests that compute looked for garbage all the time
    gc.enable()


@contextmanager
def _started_gpu(**options: int) -> Iterator[EmulatedGpu]:
    # Not under tmp_path: a socket's path has room for 107 bytes.
    directory = tempfile.mkdtemp(prefix="runlist-test-")
    try:
        with EmulatedGpu(Path(directory) / "gpu", **options) as gpu:
            yield gpu
    finally:
        shutil.rmtree(directory, ignore_errors=True)


_of_the_session: list[tuple[EmulatedGpu, dict[str, str], dict[str, str]]] = []
"""With the environment that leads to it, and a copy."""


@pytest.fixture(scope="session")
def device_env() -> Iterator[dict[str, str]]:
    """Environment for child processes that are to use the device of the session."""
    if ON_NVIDIA:
        yield ENVIRONMENT
        return
    with _started_gpu() as gpu:
        environment = {**ENVIRONMENT, **gpu.environment()}
        _of_the_session.append((gpu, environment, dict(environment)))
        yield environment


@pytest.fixture(scope="module", autouse=True)
def nobody_is_left() -> Iterator[None]:
    """A file of tests fails that leaves processes on the session's GPU, which the next file's tests would share."""
    yield
    for gpu, environment, before in _of_the_session:
        assert environment == before, "a test changed the environment of the session's device for all later ones"
        left = end_all(gpu.dir)
        assert not left, "left on the emulated GPU, and killed:\n" + "\n".join(left)


@pytest.fixture
def fresh_gpu() -> Iterator[Callable[..., EmulatedGpu]]:
    """Starts an emulated GPU of the test's own: `fresh_gpu(gpus=2)`. Skipped on a real one."""
    if ON_NVIDIA:
        pytest.skip("needs an emulated GPU of its own")
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(_started_gpu(**options))


@pytest.fixture
def on_device(device_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's own environment names the device of the session."""
    for name, value in device_env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tenant(device_env: dict[str, str]) -> Iterator[Tenant]:
    """Starts a workload and waits until it is ready: `tenant("batch", "--rounds", "1000")`. All end with the test."""
    started: list[WorkloadProcess] = []

    def start(name: str, *arguments: str, environment: dict[str, str] | None = None) -> WorkloadProcess:
        process = WorkloadProcess(name, *arguments, environment=environment or device_env)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
