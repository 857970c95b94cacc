"""`podman run --device runlist.dev/gpu=0` puts a container under the daemon, which runs outside."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures import compiler
from tests.fixtures.containerd import IMAGE, pause_image
from tests.fixtures.daemon import (
    ROOT,
    Commands,
    Daemon,
    Worker,
    commands,
    needs_root,
    short_path,
    start_daemon,
    wait_for,
)
from tests.fixtures.engine import Engine, engine
from tests.fixtures.holder import OUT_OF_MEMORY, Holder
from tests.fixtures.node import needs_programs

__all__ = ["commands", "engine", "short_path", "start_daemon"]

FOLDER = Path("/var/run/cdi")  # podman 4 has no option for it
DEVICE = ("--device", "runlist.dev/gpu=0")
GiB = 1 << 30

pytestmark = [
    needs_root,
    needs_programs("podman"),
    pytest.mark.skipif(ON_NVIDIA, reason="an image with the driver's libraries would have to be there"),
]


@pytest.fixture
def specification(commands: Commands) -> Iterator[Path]:
    """The specification of the test's GPU and daemon, where podman looks."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "runlist-test.json"
    lock = os.open(FOLDER / ".runlist-test.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # another's test would take it for its own
    try:
        commands.ok("cdi", "generate", "--output", str(path))
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


@pytest.fixture
def drop_ins(commands: Commands) -> Callable[[], list[str]]:
    """Names of the rules that are there."""
    return lambda: sorted(path.name for path in (commands.folder / "rules.d").iterdir())


def annotations(**values: str) -> list[str]:
    return [word for key, value in values.items() for word in ("--annotation", f"runlist.dev/{key}={value}")]


def words(engine: Engine, name: str, folder: Path, *options: str) -> list[str]:
    """No variable and no mount is the GPU's, the library's or the daemon's: those are the device's."""
    return engine.run(name, {"PYTHONPATH": str(ROOT)}, (f"{folder}:{folder}",), *DEVICE, *options)


def test_a_container_is_managed_by_its_device_alone(
    engine: Engine,
    specification: Path,
    start_daemon: Callable[..., Daemon],
    commands: Commands,
    drop_ins: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    daemon = start_daemon()
    options = annotations(**{"class": "batch", "weight": "30", "cap": "50"})
    tenant = Worker(commands.environment, tmp_path, before=words(engine, "tenant", tmp_path, *options))
    try:
        pid, identity = engine.pid("tenant"), engine.ask("inspect", "-f", "{{.Id}}", "tenant")
        wait_for(lambda: [task.pid for task in daemon.client.ps()] == [pid], "the container to be managed")
        (task,) = daemon.client.ps()
        assert (task.task_class, task.weight, task.cap_percent, task.container) == ("batch", 30, 50.0, identity)
        assert task.labels == {"container": identity}
        assert task.group.startswith("container:")
        assert "librunlist.so" in Path(f"/proc/{pid}/maps").read_text()
        assert drop_ins() == [f"oci-{identity}.toml"]
        daemon.kill()
        tenant.wait_for_progress()
        daemon = start_daemon()
        wait_for(lambda: [task.pid for task in daemon.client.ps()] == [pid], "another daemon to find it")
        assert daemon.client.ps()[0].weight == 30
        assert tenant.quit()
        assert tenant.process.wait(30) == 0
        wait_for(lambda: not drop_ins(), "the rules to be taken away")
    finally:
        tenant.kill()


RESTRICTED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")
"""As pods are that may write no file and do nothing else than compute."""


@pytest.mark.parametrize("options", [(), RESTRICTED], ids=["plain", "restricted"])
def test_a_containers_memory_is_limited_from_inside_by_a_variable(
    engine: Engine,
    specification: Path,
    start_daemon: Callable[..., Daemon],
    commands: Commands,
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    daemon = start_daemon()
    limited = words(engine, "held", tmp_path, *options, "-e", "RUNLIST_MEMORY=2G")
    with Holder(limited, commands.environment) as inside:
        assert [inside.do("open"), inside.do("take 1500"), inside.do("take 600")] == [0, 0, OUT_OF_MEMORY]
        wait_for(lambda: [task.memory_limit_bytes for task in daemon.client.ps()] == [2 * GiB], "the limit to be known")
        engine.ask("kill", "held")


def test_a_containers_memory_is_limited_from_outside_by_an_annotation(
    engine: Engine, specification: Path, start_daemon: Callable[..., Daemon], commands: Commands, tmp_path: Path
) -> None:
    """The library keeps a limit that is there when the program starts; for one of a rule the daemon takes the GPU."""
    daemon = start_daemon()
    with Holder(words(engine, "held", tmp_path, *annotations(memory="2G")), commands.environment) as inside:
        assert inside.do("open") == 0
        wait_for(lambda: [task.memory_limit_bytes for task in daemon.client.ps()] == [2 * GiB], "the limit")
        assert not daemon.client.ps()[0].suspended
        assert [inside.do("take 1500"), inside.do("take 600")] == [0, 0]
        wait_for(lambda: daemon.client.ps()[0].suspended, "the GPU to be taken")
        assert inside.do("give") == 0
        wait_for(lambda: not daemon.client.ps()[0].suspended, "the GPU to be given back")
        engine.ask("kill", "held")


@pytest.fixture
def pod(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A pod of podman's, whose first container only waits."""
    settings = tmp_path / "containers.conf"  # of that container, as the others have them by options
    settings.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(settings))
    engine.ask("load", "--input", str(pause_image(tmp_path, compiler.compiler(*compiler.C)[0])))
    waiting = ("--infra-image", IMAGE, "--infra-command", "/pause")
    yield engine.ask("pod", "create", "--name", "shop", "--share", "ipc", *waiting)
    engine.ask("pod", "rm", "--force", "shop")


def test_containers_of_a_pod_have_what_each_asks_for(
    engine: Engine,
    specification: Path,
    start_daemon: Callable[..., Daemon],
    commands: Commands,
    tmp_path: Path,
    pod: str,
) -> None:
    """Their cgroups lie in one that has the pod's id for its name."""
    daemon = start_daemon()
    tenants = []
    try:
        for weight in (30, 60):
            (tmp_path / str(weight)).mkdir()
            options = ("--pod", pod, *annotations(weight=str(weight)))
            before = words(engine, f"weighs-{weight}", tmp_path / str(weight), *options)
            tenants.append(Worker(commands.environment, tmp_path / str(weight), before=before))
        wanted = {engine.ask("inspect", "-f", "{{.Id}}", f"weighs-{weight}"): weight for weight in (30, 60)}
        wait_for(lambda: {task.container: task.weight for task in daemon.client.ps()} == wanted, "their weights")
        assert len({task.group for task in daemon.client.ps()}) == 2
    finally:
        for tenant in tenants:
            tenant.kill()


def test_a_container_without_a_daemon_runs_and_is_found_later(
    engine: Engine, specification: Path, start_daemon: Callable[..., Daemon], commands: Commands, tmp_path: Path
) -> None:
    tenant = Worker(commands.environment, tmp_path, before=words(engine, "early", tmp_path, *annotations(weight="40")))
    try:
        tenant.wait_for_progress()
        daemon = start_daemon()
        wait_for(lambda: [task.weight for task in daemon.client.ps()] == [40], "the container to be found")
        assert tenant.quit()
    finally:
        tenant.kill()


@pytest.fixture
def system_log() -> Iterator[socket.socket | None]:
    """Where the system's log comes in; None on a machine that has one itself."""
    path = Path("/dev/log")
    if path.exists():
        yield None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        log.settimeout(20)
        yield log
        path.unlink()


def test_a_wrong_annotation_keeps_nothing_from_running_and_is_in_the_systems_log(
    engine: Engine, specification: Path, start_daemon: Callable[..., Daemon], commands: Commands, tmp_path: Path,
    system_log: socket.socket | None,
) -> None:  # fmt: skip
    daemon = start_daemon()
    options = annotations(**{"class": "gold", "weight": "20", "wieght": "7"})
    tenant = Worker(commands.environment, tmp_path, before=words(engine, "wrong", tmp_path, *options))
    try:
        wait_for(lambda: [task.weight for task in daemon.client.ps()] == [20], "the container to be managed")
        assert daemon.client.ps()[0].task_class == "normal"
        if system_log is not None:
            told = sorted(system_log.recv(4096).decode() for _ in range(2))
            assert all("runlist-cdi" in line and engine.ask("ps", "--quiet") in line for line in told)
            assert ["runlist.dev/class=gold" in told[0], "runlist.dev/wieght=7" in told[1]] == [True, True]
        assert tenant.quit()
    finally:
        tenant.kill()
