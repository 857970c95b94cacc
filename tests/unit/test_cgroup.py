"""What a cgroup's path and its files tell: units of systemd, and the CPU weight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rules import Rules
from runlist.errors import UsageError
from runlist.proc import cgroup
from runlist.proc.cgroup import CpuWeights, units_of

USER = "/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter-x.service"


@pytest.mark.parametrize(
    ("path", "units"),
    [
        ("/system.slice/jupyter-alice.service", ["system.slice", "jupyter-alice.service"]),
        ("/gold.slice/gold-a.slice/x.service/sub/evil.service", ["gold.slice", "gold-a.slice", "x.service"]),
        (USER, ["user.slice", "user-1000.slice", "user@1000.service"]),
        ("/system.slice/docker-abc.scope/init.scope", ["system.slice", "docker-abc.scope"]),
        ("/kubepods/pod1/abc", []),
        ("/", []),
        ("", []),
    ],
)
def test_units_are_those_that_the_systems_manager_made(path: str, units: list[str]) -> None:
    assert units_of(path) == units


def test_units_of_ones_own_manager_are_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 1000)
    assert units_of(USER)[-2:] == ["app.slice", "jupyter-x.service"]
    assert units_of(USER.replace("1000", "1001"))[-1] == "user@1001.service"


def test_a_rule_by_unit(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nunit = ["jupyter-*.service", "gold.slice"]\nset = { weight = "cgroup" }\n')
    rules = Rules.load(file)
    for path, matches in (
        ("/system.slice/jupyter-a.service", True), ("/gold.slice/b.service", True), (USER, False),
        ("/system.slice/a.service", False), ("", False),
    ):  # fmt: skip
        match = rules.match(Facts(1000, cgroup=path))
        assert (match is not None) == matches, path
        assert match is None or match.settings == {"weight": "100"}


@pytest.mark.parametrize(
    "words",
    ["unit = []", "unit = 3", 'unit = "a["', 'unit = ""', 'unit = "jupyter"', 'unit = ["a.slice", "a.slice/b"]'],
)
def test_units_that_are_none_are_refused(words: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f"[[rule]]\n{words}\n")
    with pytest.raises(UsageError, match=r"rules.toml:2"):
        Rules.load(file)


@pytest.mark.parametrize("words", ['{ weight = "Cgroup" }', '{ cap = "cgroup" }', '{ weight = "cgroups" }'])
def test_only_a_weight_follows_a_cgroup(words: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f"[[rule]]\nset = {words}\n")
    with pytest.raises(UsageError, match=r"rules.toml:2"):
        Rules.load(file)


NODE, POD, OURS, OTHER = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
NESTED = f"/docker/{NODE}/kubelet/kubepods/burstable"


@pytest.mark.parametrize(
    ("ours", "theirs", "container"),
    [
        (f"{NESTED}/pod1/{OURS}", f"{NESTED}/pod2/{POD}", POD),
        (f"{NESTED}/pod1/{OURS}", f"{NESTED}/pod2/{POD}/{OTHER}", POD),  # what it makes below its own is not believed
        (f"{NESTED}/pod1/{OURS}", f"{NESTED}/pod2/{POD}/{OURS}", POD),
        (f"{NESTED}/pod1/{OURS}", f"{NESTED}/pod1/{OURS}", OURS),
        (f"{NESTED}/pod1/{OURS}", f"/docker/{OTHER}/pod2/{POD}", OTHER),
        (f"/docker/{NODE}/system.slice/runlist.service", f"{NESTED}/pod2/{POD}", POD),
        ("/system.slice/runlist.service", f"{NESTED}/pod2/{POD}", NODE),
        (f"/docker/{NODE}", f"/docker/{NODE}", NODE),
    ],
)
def test_a_node_that_is_a_container_is_none_of_its_pods(
    ours: str, theirs: str, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kind's, under older hierarchies: there a path shows the containers that the daemon is in itself."""
    paths = {os.getpid(): ours, 1: theirs}
    monkeypatch.setattr(cgroup, "read", lambda pid, *_: f"4:memory:{paths[pid]}\n0::/\n")
    assert cgroup.cgroup_of(1) == (theirs, container)


def test_of_a_container_in_older_hierarchies_alone_the_path_is_the_one_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the unified hierarchy has its engine's service, or nothing: rules and bounds for pods would find none."""
    pod, service = f"/kubepods/burstable/pod1/{POD}", "/system.slice/containerd.service"
    job = "/slurm/uid_1000/job_7/step_0"
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncgroup = "/kubepods*"\nset.class = "batch"\n')
    for lines, path in (
        (f"4:pids:{pod}\n1:name=systemd:{pod}\n0::{service}\n", pod),
        (f"4:pids:{pod}\n", pod),
        (f"4:pids:{service}\n0::{service}\n", service),
        (f"4:freezer:{job}\n3:pids:{pod}\n0::{service}\n", job),
    ):
        monkeypatch.setattr(cgroup, "read", lambda pid, *_, lines=lines: lines if pid == 1 else "0::/\n")
        assert cgroup.cgroup_of(1)[0] == path
        assert (Rules.load(rules).match(Facts(0, cgroup=path)) is not None) == (path == pod)


def _pod(name: str, container: str) -> str:
    return f"/kubepods.slice/kubepods-{name}.slice/cri-containerd-{container}.scope"


@pytest.mark.parametrize(
    ("top", "own"),
    [("", "/"), ("unified", "/"), ("", "/inner"), ("nowhere", "/")],
    ids=["v2", "hybrid", "below", "unseen"],
)
def test_a_daemon_in_a_pod_knows_paths_from_the_root_on(
    top: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own namespace of cgroups the kernel shows it others' paths from its own on."""
    theirs = f"/../../kubepods-pod2.slice/cri-containerd-{POD}.scope"
    monkeypatch.setattr(
        cgroup, "read", lambda pid, *_: f"0::{own if pid == os.getpid() else theirs if pid == 2 else '/../../..'}\n"
    )
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    cgroup._namespace.cache_clear()
    if top != "nowhere":
        write(tmp_path / top / "cgroup.controllers", "cpu\n")
        write(tmp_path / top / f".{_pod('pod1', OURS)}{own}" / "cgroup.procs", f"1\n{os.getpid()}\n")
        write(tmp_path / top / f".{_pod('pod2', POD)}" / "cgroup.procs", "2\n")
    seen = top != "nowhere"
    assert cgroup.cgroup_of(2) == (_pod("pod2", POD) if seen else theirs, POD)
    assert cgroup.cgroup_of(3) == ("/" if seen else "/../../..", "")
    cgroup._namespace.cache_clear()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "weight"),
    [
        ("a/b/cpu.weight", "250\n", 250),
        ("a/cpu.weight", "30\n", 30),
        ("unified/a/b/cpu.weight", "77\n", 77),
        ("cpu,cpuacct/a/b/cpu.shares", "2048\n", 200),
        ("cpu/a/b/cpu.shares", "2\n", 1),
        ("cpu/a/b/cpu.shares", "262144\n", 10_000),
        ("a/b/cpu.weight", "idle\n", 100),
        ("a/b/cpu.weight", "", 100),
        ("cpu.weight", "5\n", 100),
        ("other/cpu.weight", "5\n", 100),
    ],
)
def test_the_weight_of_a_cgroup(file: str, text: str, weight: int, tmp_path: Path) -> None:
    write(tmp_path / file, text)
    assert CpuWeights(tmp_path).of("/a/b") == weight
    assert CpuWeights(tmp_path / "x").of("/a/../../b") == 100


def test_changes_are_seen_once_and_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    write(tmp_path / "a/cpu.weight", "50\n")
    weights = CpuWeights(tmp_path)
    assert not weights.changed()
    assert weights.of("/a") == 50
    assert not weights.changed()
    write(tmp_path / "a/cpu.weight", "60\n")
    assert weights.changed()
    assert not weights.changed()
    os.unlink(tmp_path / "a/cpu.weight")
    os.rmdir(tmp_path / "a")
    assert not weights.changed()
    assert not weights._known
