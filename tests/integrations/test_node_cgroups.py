"""Noticing containers by their cgroups, as each driver of the kubelet names them: folders are enough for inotify."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runlist.integrations.node.cgroups import PodsWatch
from tests.fixtures.cri import container_id
from tests.fixtures.daemon import wait_for

FIRST, LATER = container_id("first"), container_id("later")


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ("kubepods/besteffort/pod1234", "{}"),
        ("kubepods/pod1234", "{}"),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice", "cri-containerd-{}.scope"),
        ("kubepods.slice/kubepods-pod12_34.slice", "crio-{}.scope"),
        ("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod12_34.slice", "cri-containerd-{}.scope"),
    ],
)
def test_containers_are_seen_before_and_after(tmp_path: Path, pod: str, name: str) -> None:
    changed = threading.Event()
    (tmp_path / pod / name.format(FIRST)).mkdir(parents=True)
    watch = PodsWatch(changed.set, tmp_path)
    try:
        assert watch.sees([FIRST])
        assert not watch.sees([LATER])
        assert not watch.sees([])
        other = tmp_path / pod.replace("12", "56") / name.format(LATER)
        other.mkdir(parents=True)
        assert changed.wait(60)
        wait_for(lambda: watch.sees([LATER]))
        changed.clear()
        other.rmdir()
        assert changed.wait(60)
        wait_for(lambda: not watch.sees([LATER]))
    finally:
        watch.close()


def test_the_first_pod_of_a_node(tmp_path: Path) -> None:
    changed = threading.Event()
    watch = PodsWatch(changed.set, tmp_path)
    (tmp_path / "kubepods" / "pod1" / FIRST).mkdir(parents=True)
    assert changed.wait(60)
    wait_for(lambda: watch.sees([FIRST]))
    watch.close()


def test_what_is_not_the_kubelets_wakes_nobody_and_is_not_watched(tmp_path: Path) -> None:
    changed = threading.Event()
    (tmp_path / "kubepods" / "pod1" / FIRST / "own").mkdir(parents=True)
    watch = PodsWatch(changed.set, tmp_path)
    before = watch.watches
    for number in range(100):
        (tmp_path / f"user-{number}.slice").mkdir()
        (tmp_path / "kubepods" / "pod1" / FIRST / f"own-{number}").mkdir()
    (tmp_path / "kubepods" / "pod1" / LATER).touch()  # a file is none
    assert not changed.wait(0.5)
    assert watch.watches == before
    assert not watch.sees([LATER])
    for number in range(100):
        (tmp_path / "kubepods" / f"pod-{number}" / container_id(number)).mkdir(parents=True)
    wait_for(lambda: watch.sees([container_id(99)]))
    for number in range(100):
        (tmp_path / "kubepods" / f"pod-{number}" / container_id(number)).rmdir()
        (tmp_path / "kubepods" / f"pod-{number}").rmdir()
    wait_for(lambda: watch.watches == before, "no watch is kept of a pod that is gone")
    watch.close()


def test_when_the_kernel_has_told_less_than_there_was_all_is_looked_at_again(tmp_path: Path) -> None:
    """More happens than its queue has room for, while nobody reads it."""
    held, go_on = threading.Event(), threading.Event()

    def changed() -> None:
        held.set()
        go_on.wait(60)

    watch = PodsWatch(changed, tmp_path)
    names = [tmp_path / "user.slice", tmp_path / "users.slice"]
    names[0].mkdir()
    (tmp_path / "kubepods").mkdir()
    assert held.wait(60)
    room = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(room + 1):
        names[0].rename(names[1])
        names.reverse()
    for depth in ("pod1", "burstable/pod2"):
        (tmp_path / "kubepods" / depth / container_id(depth)).mkdir(parents=True)
    go_on.set()
    for depth in ("pod1", "burstable/pod2"):
        wait_for(lambda depth=depth: watch.sees([container_id(depth)]))  # type: ignore[misc]
    watch.close()
