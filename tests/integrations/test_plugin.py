"""`runlist plugin` beside a kubelet that speaks the real gRPC."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from runlist.emulated import EmulatedGpu
from runlist.integrations.kubernetes import deviceplugin_autogen as api
from runlist.integrations.kubernetes import names
from runlist.integrations.kubernetes import podresources_autogen as resources
from runlist.integrations.plugin.ids import split_id
from runlist.integrations.plugin.service import PAIR_S
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, PATIENCE_S, As, needs_root, wait_for
from tests.fixtures.kubelet import Kubelet, Refused, gpus_of
from tests.fixtures.plugin import MEMORY, SHARE, GiB, Plugin, served

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="GPUs are made, hurt and taken away")


def test_shares_are_offered_allocated_and_known_by_pod_resources(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    plugin = start()
    devices = kubelet.plugin(SHARE)
    assert devices.request.endpoint == "runlist.dev-gpu-share.sock"
    assert devices.request.options.get_preferred_allocation_available
    assert len(devices.healthy) == 200
    pods = [kubelet.admit(f"web-{share}", {SHARE: share}) for share in (40, 30, 30, 50, 50)]
    assert [len(gpus_of(pod.ids[SHARE])) for pod in pods] == [1] * 5
    with pytest.raises(Refused, match="0 are free"):
        kubelet.admit("late", {SHARE: 1})
    kubelet.remove(pods[3])
    kubelet.admit("late", {SHARE: 50})
    given = pods[1].answers[SHARE]
    (where,) = gpus_of(pods[1].ids[SHARE])
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == where
    assert given.envs["LD_PRELOAD"] == given.mounts[0].container_path
    assert Path(given.mounts[0].host_path).is_file()
    assert given.mounts[0].read_only
    assert (given.mounts[1].container_path, given.mounts[1].read_only) == ("/run/runlist", True)
    assert Path(given.mounts[1].host_path).is_dir()
    assert given.envs["RUNLIST_MESSAGES"] == "/run/runlist/messages.sock"
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources}") as channel:
        told = resources.PodResourcesListerStub(channel).List(resources.ListPodResourcesRequest(), timeout=PATIENCE_S)
    listed = {pod.name: pod.containers[0] for pod in told.pod_resources}
    ((resource, ids),) = [(one.resource_name, one.device_ids) for one in listed["web-30"].devices]
    assert ([split_id(resource, text)[0] for text in ids], resource) == ([where] * 30, SHARE)
    assert given.annotations[names.GRANTED_SHARE] == "30"
    assert plugin.end() == 0
    assert [path.name for path in kubelet.folder.iterdir()] == ["kubelet.sock"]


@pytest.mark.parametrize("order", [(SHARE, MEMORY), (MEMORY, SHARE)])
def test_share_and_memory_of_a_pod_land_on_one_gpu(
    kubelet: Kubelet, start: Callable[..., Plugin], order: tuple[str, str]
) -> None:
    """A kubelet asks for one after the other, in either order."""
    start("--resources", "share,memory")
    kubelet.admit("full", {SHARE: 10})
    kubelet.plugin(MEMORY)
    sizes = {SHARE: 30, MEMORY: 40}
    for number in range(3):
        pod = kubelet.admit(f"pod-{number}", {name: sizes[name] for name in order})
        assert gpus_of(pod.ids[SHARE]) == gpus_of(pod.ids[MEMORY])
        told = {**pod.answers[SHARE].annotations, **pod.answers[MEMORY].annotations}
        (where,) = gpus_of(pod.ids[SHARE])
        assert told == {
            names.GRANTED_SHARE: "30",
            names.GRANTED_GPUS: where,
            names.GRANTED_MEMORY: str(40 * GiB),
            names.GRANTED_MEMORY_GPUS: where,
        }
        assert pod.answers[SHARE].envs["NVIDIA_VISIBLE_DEVICES"] == where


def test_programs_of_a_pod_whose_memory_is_elsewhere_take_one_gpu_and_it_is_said(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    plugin = start("--resources", "share,memory")
    kubelet.plugin(MEMORY)
    kubelet.admit("shares", {SHARE: 90})
    time.sleep(PAIR_S)
    kubelet.admit("memory", {MEMORY: 130})
    time.sleep(PAIR_S)
    pod = kubelet.admit("pod", {MEMORY: 5, SHARE: 50})
    (where,) = gpus_of(pod.ids[SHARE])
    assert gpus_of(pod.ids[MEMORY]) != {where}
    assert pod.answers[SHARE].envs["NVIDIA_VISIBLE_DEVICES"] == where
    assert [answer.envs["CUDA_VISIBLE_DEVICES"] for answer in pod.answers.values()] == ["", where]
    assert "are on different GPUs" in plugin.log


def test_a_pod_that_asks_for_memory_alone_sees_its_gpu_whoever_came_before(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    """A share was allocated just before, on a GPU that has no memory left: nobody says whose it was."""
    start("--resources", "share,memory")
    kubelet.plugin(MEMORY)
    kubelet.admit("full", {SHARE: 50, MEMORY: 140})
    kubelet.admit("whole", {SHARE: 100})
    shares = kubelet.admit("shares", {SHARE: 10})
    memory = kubelet.admit("memory", {MEMORY: 5})
    (where,) = gpus_of(memory.ids[MEMORY])
    assert gpus_of(shares.ids[SHARE]) != {where}
    assert memory.answers[MEMORY].envs["NVIDIA_VISIBLE_DEVICES"] == where


@pytest.mark.parametrize("order", [(SHARE, MEMORY), (MEMORY, SHARE)])
@pytest.mark.parametrize("full", [{SHARE: 50, MEMORY: 140}, {SHARE: 100, MEMORY: 70}])
def test_a_gpu_that_has_nothing_left_of_the_one_gives_none_of_the_other(
    kubelet: Kubelet, start: Callable[..., Plugin], order: tuple[str, str], full: dict[str, int]
) -> None:
    """Where another has both: a container would have its share here and its memory there."""
    start("--resources", "share,memory")
    kubelet.plugin(MEMORY)
    before = kubelet.admit("full", full)
    sizes = {SHARE: 30, MEMORY: 20}
    pod = kubelet.admit("pod", {name: sizes[name] for name in order})
    assert gpus_of(pod.ids[SHARE]) == gpus_of(pod.ids[MEMORY]) != gpus_of(before.ids[SHARE])


def test_who_asks_for_a_share_alone_does_not_part_those_of_the_next_pod(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    start("--resources", "share,memory")
    kubelet.plugin(MEMORY)
    kubelet.admit("before", {SHARE: 80})
    other = kubelet.admit("shares", {SHARE: 30})
    pod = kubelet.admit("pod", {MEMORY: 5, SHARE: 10})
    assert gpus_of(pod.ids[MEMORY]) == gpus_of(other.ids[SHARE])
    assert gpus_of(pod.ids[SHARE]) == gpus_of(pod.ids[MEMORY])


def test_a_share_that_would_lie_on_two_gpus_is_refused(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    plugin = start()
    kubelet.admit("a", {SHARE: 70})
    kubelet.admit("b", {SHARE: 70})
    with pytest.raises(Refused, match="pieces of several"):
        kubelet.admit("c", {SHARE: 50})
    assert len(gpus_of(kubelet.admit("d", {SHARE: 30}).ids[SHARE])) == 1
    assert "an allocation was refused" in plugin.log


def test_an_xid_makes_a_gpu_unhealthy_and_a_programs_own_does_not(
    kubelet: Kubelet, start: Callable[..., Plugin], gpu: EmulatedGpu
) -> None:
    start()
    devices = kubelet.plugin(SHARE)
    with (gpu.dir / "xid").open("a") as file:
        file.write("1 13\n1 31\n0 48\n")
    wait_for(lambda: len(devices.healthy) == 100, "the XID to be told", 4)  # sooner than the next look without one
    (sick,) = gpus_of(list(devices.devices.keys() - devices.healthy))
    with pytest.raises(grpc.RpcError, match="XID 48"):
        kubelet.allocate(SHARE, [f"{sick}::p00"])
    assert gpus_of(kubelet.admit("other", {SHARE: 100}).ids[SHARE]) != {sick}


def test_gpus_that_vanish_are_unhealthy_until_they_are_back(
    kubelet: Kubelet, start: Callable[..., Plugin], gpu: EmulatedGpu
) -> None:
    plugin = start()
    devices = kubelet.plugin(SHARE)
    before = set(devices.devices)
    gpu.stop()
    wait_for(lambda: not devices.healthy, "the GPUs to be missed")
    assert set(devices.devices) == before
    gpu.start()
    wait_for(lambda: len(devices.healthy) == 200, "the GPUs to be back")
    assert kubelet.admit("after", {SHARE: 100})
    assert plugin.process.poll() is None


def test_the_topology_is_told_where_it_is_known(kubelet: Kubelet) -> None:
    with served(kubelet.folder):
        devices = kubelet.plugin(SHARE).devices
        assert [node.ID for node in devices["GPU-one::p00"].topology.nodes] == [1]
        assert not devices["GPU-two::p00"].HasField("topology")


@needs_root
def test_nobody_else_reaches_the_socket(kubelet: Kubelet, folder: Path) -> None:
    folder.chmod(0o755)
    with served(kubelet.folder):
        path = kubelet.folder / kubelet.plugin(SHARE).request.endpoint
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, 0)

        def connect() -> str:
            with socket.socket(socket.AF_UNIX) as connection:
                try:
                    connection.connect(str(path))
                except PermissionError:
                    return "refused"
            return "connected"

        assert connect() == "connected"
        assert As(NOBODY)(connect) == "refused"


def test_requests_that_make_no_sense_are_refused_and_harm_nobody(kubelet: Kubelet) -> None:
    with served(kubelet.folder):
        plugin = kubelet.plugin(SHARE)
        hostile = [
            [], [""], ["GPU-one::p100"], ["GPU-three::p00"], ["GPU-one::m00"], ["GPU-one::p00"] * 2, ["../../etc"],
            ["x" * 1_000_000], [f"GPU-one::p{number:02d}" for number in range(100)] * 300,
            [f"GPU-{number}::p00" for number in range(20_000)], sorted(plugin.devices)[:150],
        ]  # fmt: skip
        for ids in hostile:
            with pytest.raises(grpc.RpcError) as caught:
                kubelet.allocate(SHARE, ids)
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), ids[
                :3
            ]
            assert len(caught.value.details()) < 1000
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=["", "nonsense", "GPU-three::p00", "GPU-two::p05"],
                    must_include_deviceIDs=["what", "what"],
                    allocation_size=size,
                )
                for size in (-(2**31), 0, 3, 2**31 - 1)
            ]
        )
        answer = plugin.stub.GetPreferredAllocation(request, timeout=PATIENCE_S)
        assert [list(one.deviceIDs) for one in answer.container_responses][2] == ["what", "GPU-two::p05"]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(kubelet.folder / plugin.request.endpoint))
            connection.sendall(os.urandom(100_000))
        with ExitStack() as stack:
            for _ in range(300):  # streams that nobody reads
                call = plugin.stub.ListAndWatch(api.Empty())
                stack.callback(call.cancel)
            time.sleep(0.5)

        def admits() -> bool:
            try:
                return kubelet.admit("pod", {SHARE: 10}).answers[SHARE].annotations[names.GRANTED_SHARE] == "10"
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:  # it has yet to hear that they are cancelled
                    return False
                raise

        wait_for(admits)
        assert not plugin.gone.is_set()


def test_the_library_is_installed_for_containers_of_the_host(
    kubelet: Kubelet, start: Callable[..., Plugin], folder: Path
) -> None:
    start("--install", str(folder / "host"), "--cdi", str(folder / "cdi"), "--with", "nvidia.com/gpu")
    given = kubelet.admit("pod", {SHARE: 10})
    assert [one.name.partition("=")[0] for one in given.answers[SHARE].cdi_devices] == [
        "nvidia.com/gpu",
        "runlist.dev/gpu",
    ]
    wait_for((folder / "cdi" / "runlist.dev-gpu.json").is_file, "the CDI specification")
    text = (folder / "cdi" / "runlist.dev-gpu.json").read_text()
    assert str(folder / "host" / "librunlist.so") in text
    for path in (folder / "cdi" / "runlist.dev-gpu.json", folder / "host" / "librunlist.so"):
        path.unlink()
        wait_for(path.is_file, "what somebody took away")
    assert given.answers[SHARE].cdi_devices[1].name.partition("=")[2] in text


def test_wrong_words_are_one_line(folder: Path, gpu: EmulatedGpu) -> None:
    for words, said in (
        (["--resources", "shares"], "take share, memory"),
        (["--with", "nvidia.com/gpu"], "--with goes with --cdi"),
        (["--cdi", str(folder), "--with", "nvidia.com"], "VENDOR/CLASS"),
        (["--cdi", __file__], f"--cdi {__file__}: this is no folder"),
        (["--install", __file__], f"--install {__file__}: this is no folder"),
    ):
        plugin = Plugin(folder, gpu, *words)
        assert plugin.process.wait(PATIENCE_S) == 2
        assert said in plugin.log
        assert plugin.log.count("\n") == 1
