"""Cgroups that were given to a user, who names and weighs those below as it likes: it is nobody else for that."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rules import Rules
from runlist.proc.cgroup import MOUNT, CpuWeights, cgroup_of, granted
from tests.fixtures.daemon import NOBODY, needs_root

pytestmark = needs_root

ID = "5a" * 32
NAME = f"runlist-hostile-{os.getpid()}"
Make = Callable[..., Path]
HIERARCHIES = [path for name in ("systemd", "unified", "cpu", "") if (path := MOUNT / name / "cgroup.procs").exists()]


@pytest.fixture(params=HIERARCHIES, ids=lambda path: str(path.parent))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a cgroup below one of ours, which belongs to this user."""
    top = request.param.parent / NAME

    def cgroup(path: str, owner: int = NOBODY) -> Path:
        try:
            top.mkdir(exist_ok=True)
            os.chown(top, owner, owner)
            (top / path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        return top / path

    yield cgroup
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


@contextlib.contextmanager
def inside(cgroup: Path) -> Iterator[int]:
    """A process in a cgroup."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("end", ["\v", "\f", "\x1c", "\x85", "\u2028", "\r"])
@pytest.mark.parametrize(
    "forged", [f"0::/kubepods/pod/{ID}", "7:freezer:/slurm/uid_0/job_7/step_0", "0::/system.slice/gold.service"]
)
def test_a_name_of_several_lines_is_one(make: Make, end: str, forged: str) -> None:
    with inside(make(f"x{end}{forged}")) as pid:
        cgroup, container = cgroup_of(pid)
    assert not cgroup.startswith(("/kubepods", "/slurm", "/system.slice"))
    assert container != ID


@pytest.mark.parametrize("below", [f"docker-{ID}.scope", f"kubepods/{ID}", f"a/b/libpod-{ID}.scope/container"])
def test_nobody_calls_a_cgroup_by_anothers_container(make: Make, below: str) -> None:
    with inside(make(below)) as pid:
        assert cgroup_of(pid)[1] == f"{NOBODY}:{ID}"


def test_roots_containers_are_what_they_are_called(make: Make) -> None:
    cgroup = make(f"docker-{ID}.scope", owner=0)
    os.chown(cgroup, NOBODY, NOBODY)  # what is below is the container's own
    with inside(cgroup) as pid:
        assert cgroup_of(pid)[1] == ID


@pytest.mark.parametrize(
    "path",
    [f"/user.slice/user-7.slice/user@7.service/docker-{ID}.scope", f"/../../user@7.service/app.slice/cri-{ID}.scope"],
)
def test_a_users_manager_tells_whose_a_container_is(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlist.proc.cgroup.read", lambda pid, name, most: f"0::{path}\n")
    monkeypatch.setattr("runlist.proc.cgroup._namespace", lambda pid: "")  # the machine's hierarchy is not seen
    assert cgroup_of(1) == (path, f"7:{ID}")


def test_a_cgroups_weight_is_what_its_administrator_said(make: Make) -> None:
    top = make(".").parent / NAME
    weight = next((top / name for name in ("cpu.weight", "cpu.shares") if (top / name).exists()), None)
    if weight is None:
        pytest.skip("this hierarchy has no weights")
    weight.write_text("50" if weight.name == "cpu.weight" else "512")
    if weight.name == "cpu.weight":
        (top / "cgroup.subtree_control").write_text("+cpu")
    mine = make("mine/deeper")
    (mine.parent / weight.name).write_text("10000" if weight.name == "cpu.weight" else "102400")
    assert CpuWeights().of(f"/{NAME}/mine") == 50
    assert CpuWeights().of(f"/{NAME}/mine/deeper") == 50
    os.chown(top, 0, 0)
    assert CpuWeights().of(f"/{NAME}/mine") == 10000


def test_a_user_is_one_group_however_many_cgroups_it_makes(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nset.group = "cgroup"\n')
    rules = Rules.load(file)
    for path in ("a", "b", "a/c"):
        make(path)
        match = rules.match(Facts(NOBODY, cgroup=f"/{NAME}/{path}"))
        assert match is not None
        assert match.settings["group"] == f"cgroup:/{NAME}"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (f"/kubepods/pod1/{ID}/mine/x", f"/kubepods/pod1/{ID}"),
        (f"/system.slice/docker-{ID}.scope/x", f"/system.slice/docker-{ID}.scope"),
        ("/user.slice/user-7.slice/user@7.service/app.slice", "/user.slice/user-7.slice/user@7.service"),
        ("/system.slice/slurmstepd.scope/job_7/step_0", "/system.slice/slurmstepd.scope/job_7/step_0"),
        ("/a/b", "/a/b"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_what_of_a_path_is_its_administrators(path: str, part: str) -> None:
    assert granted(path) == part
