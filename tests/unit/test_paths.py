"""Where the daemon's socket is, and that nobody else can put one there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runlist import paths, tenant
from runlist.errors import NoPermissionError, UsageError
from runlist.planes.nvidia.rm.transport import EmulatedDriver, NvidiaDriver
from runlist.protocol import environment_autogen as names
from tests.fixtures.memory_plane import MemoryPlane

NVIDIA = NvidiaDriver()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(names.SOCKET, raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


@pytest.mark.parametrize("named", ["", "here", "./here"])
def test_a_relative_folder_of_settings_is_none(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As XDG's specification says: units and rules were looked for in whatever folder one was."""
    as_user(monkeypatch, 1000)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CONFIG_HOME", named)
    assert paths.rules_file() == Path("/h/.config/runlist/rules.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert paths.rules_file() == Path("/c/runlist/rules.toml")


def test_profiles_are_kept_in_the_users_own_folder_or_it_is_said_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert paths.profiles_dir() == Path("/s/runlist/profiles")
    monkeypatch.setenv("HOME", "/h")
    for none in ("", "here", "./here"):  # a relative one is to be ignored, and would be another in each folder
        monkeypatch.setenv("XDG_STATE_HOME", none)
        assert paths.profiles_dir() == Path("/h/.local/state/runlist/profiles")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert paths.profiles_dir() == Path("/h/.local/state/runlist/profiles")

    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(NoPermissionError, match="set XDG_STATE_HOME"):
        paths.profiles_dir()


@pytest.mark.parametrize(
    "named",
    ["/", ".", "a/..", "s/x.lock", "s/x.start", "s/x.changed", "s/daemon.log", "s/daemon.log.1", "s/messages.sock",
     "s/rules.d", "s/tenants", "s/regions", "s/sms"],
)  # fmt: skip
def test_a_socket_with_the_name_of_something_that_we_make_beside_it_is_refused(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One had no name to put others beside; some daemons wrote over their own socket, or never ended their start."""
    monkeypatch.setenv(names.SOCKET, named)
    with pytest.raises(UsageError, match=f"{names.SOCKET}=.*: take another name, such as daemon.sock"):
        paths.daemon_socket(NVIDIA)


@pytest.mark.parametrize("named", ["x", "s/daemon.sock", "s/lock", "s/.start", "@x", "s/a.lock/x"])
def test_any_other_name_is_taken(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.SOCKET, named)
    assert paths.daemon_socket(NVIDIA) == Path(named)


def test_roots_daemon_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    assert paths.daemon_socket(NVIDIA) == Path("/run/runlist/daemon.sock")
    assert paths.candidate_sockets(NVIDIA) == [Path("/run/runlist/daemon.sock")]


def test_a_users_daemon_is_its_own_and_the_systems_is_looked_for_next(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    assert paths.candidate_sockets(NVIDIA) == [
        Path("/tmp/runlist-1000/daemon.sock"),
        Path("/run/runlist/daemon.sock"),
    ]
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert paths.daemon_socket(NVIDIA) == Path("/run/user/1000/runlist/daemon.sock")


def test_a_socket_that_is_named_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.SOCKET, "/somewhere/x.sock")
    for driver in (NVIDIA, EmulatedDriver(Path("/gpu"))):
        assert paths.candidate_sockets(driver) == [Path("/somewhere/x.sock")]


def test_each_emulated_gpu_has_a_daemon_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid in (0, 1000):
        as_user(monkeypatch, uid)
        assert paths.candidate_sockets(EmulatedDriver(Path("/gpu"))) == [Path("/gpu/daemon.sock")]


def test_each_plane_has_a_daemon_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a command for one would be answered by the daemon of another."""
    plane = MemoryPlane()
    as_user(monkeypatch, 0)
    assert paths.candidate_sockets(plane) == [Path(f"/run/runlist-{plane.name}/daemon.sock")]
    as_user(monkeypatch, 1000)
    for runtime, folder in ((None, f"/tmp/runlist-1000-{plane.name}"), ("/run/x", f"/run/x/runlist-{plane.name}")):
        if runtime is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        own, systems = paths.candidate_sockets(plane)
        assert (own, systems) == (Path(folder, "daemon.sock"), Path(f"/run/runlist-{plane.name}/daemon.sock"))
        monkeypatch.setenv(names.DEVICE, plane.name)
        assert tenant.candidates() == [
            str(own.with_name(names.MESSAGES_SOCKET)),
            str(systems.with_name(names.MESSAGES_SOCKET)),
        ]
        assert paths.regions_dir(plane) == Path(folder, "regions")


def test_regions_lie_beside_the_socket_where_that_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(names.SOCKET, str(tmp_path / "daemon.sock"))
    assert paths.regions_dir(NVIDIA) == tmp_path / "regions"
    tmp_path.chmod(0o770)  # others could put files there
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    expected = Path("/run/runlist/regions" if os.geteuid() == 0 else "/run/user/7/runlist/regions")
    assert paths.regions_dir(NVIDIA) == expected
    tmp_path.chmod(0o700)
    as_user(monkeypatch, 1000)  # the daemon is somebody else's
    assert paths.regions_dir(NVIDIA) == Path("/run/user/7/runlist/regions")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "here")
    assert paths.regions_dir(NVIDIA) == Path.cwd() / "here/runlist/regions"


def test_a_directory_is_made_for_the_user_alone(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    paths.make_private(made)
    assert made.stat().st_mode & 0o777 == 0o700
    paths.make_private(made)  # again: fine


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    made = tmp_path / "open"
    made.mkdir()
    made.chmod(mode)
    with pytest.raises(NoPermissionError, match="others can write there"):
        paths.make_private(made)


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(NoPermissionError):
        paths.make_private(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(NoPermissionError):
        paths.make_private(tmp_path / "file")
    with pytest.raises(NoPermissionError):
        paths.make_private(tmp_path / "file" / "below")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(NoPermissionError):
        paths.make_private(tmp_path / "dangling")


def test_somebody_elses_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, os.getuid() + 1)
    with pytest.raises(NoPermissionError, match="somebody else"):
        paths.make_private(tmp_path)
