"""The daemon as a service: `runlist daemon --install`, and what it leaves alone."""

from __future__ import annotations

import configparser
import os
import shlex
from pathlib import Path

import pytest

from runlist.cli import main
from runlist.errors import RunlistError, UsageError
from runlist.integrations.systemd import units
from tests.fixtures.daemon import ROOT, As, Refused, needs_root

NOBODY = 65534


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's units go."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RUNLIST_DEVICE", raising=False)
    return tmp_path / "systemd" / "user"


def runlist(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def read(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return {name: dict(parser[name]) for name in parser.sections()}


def test_it_is_written_once_renewed_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runlist("daemon", "--install", "--user") == 0
    assert sorted(path.name for path in home.iterdir()) == ["runlist.service", "runlist.socket"]
    out = capsys.readouterr().out
    assert out.count(": written\n") == 2
    assert "next: systemctl --user daemon-reload && systemctl --user enable --now runlist.socket runlist.service" in out
    before = [(path.stat().st_ino, path.read_text()) for path in sorted(home.iterdir())]
    assert runlist("daemon", "--install", "--user") == 0
    assert [(path.stat().st_ino, path.read_text()) for path in sorted(home.iterdir())] == before
    assert capsys.readouterr().out.count("there already") == 2
    assert runlist("daemon", "--install", "--user", "--policy", "fair") == 0
    out = capsys.readouterr().out
    assert "runlist.service: renewed" in out
    assert "restart runlist.service" in out
    assert read(home / "runlist.service")["Service"]["ExecStart"].endswith("/runlist daemon --policy fair")
    assert runlist("daemon", "--uninstall", "--user") == 0
    assert list(home.iterdir()) == []
    assert "disable --now" in capsys.readouterr().out
    assert runlist("daemon", "--uninstall", "--user") == 0
    assert "next" not in capsys.readouterr().out


@pytest.mark.parametrize("change", ["append", "edit", "no head", "binary", "link"])
def test_what_somebody_changed_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str], change: str) -> None:
    assert runlist("daemon", "--install", "--user") == 0
    unit = home / "runlist.service"
    text = unit.read_bytes()
    if change == "link":
        unit.unlink()
        unit.symlink_to("/dev/null")  # `systemctl mask`
    else:
        unit.write_bytes(
            {
                "append": text + b"# mine\n",
                "edit": text.replace(b"RestartSec=1", b"RestartSec=5"),
                "no head": text.split(b"\n", 1)[1],
                "binary": b"\xff\xfe\0",
            }[change]
        )
    before = unit.read_bytes()
    capsys.readouterr()
    for words in (["--install", "--policy", "fair"], ["--uninstall"]):
        assert runlist("daemon", *words, "--user") == 0
        said = capsys.readouterr().err
        assert f"{unit}: left" in said
        assert "somebody changed it" in said
        assert unit.read_bytes() == before
    assert not (home / "runlist.socket").exists()  # that one was ours


def test_options_become_words_that_systemd_reads_as_they_were(home: Path, tmp_path: Path) -> None:
    rules = tmp_path / 'my "rules" 100%$HOME.toml'
    rules.write_text("")
    assert runlist("daemon", "--install", "--user", "--rules", str(rules)) == 0
    line = read(home / "runlist.service")["Service"]["ExecStart"]
    words = shlex.split(line.replace("%%", "%").replace("$$", "$"))
    assert words[1:] == ["daemon", "--rules", str(rules.resolve())]
    assert os.access(words[0], os.X_OK)


def test_a_group_has_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(units, "SYSTEM", tmp_path)
    monkeypatch.delenv("RUNLIST_DEVICE", raising=False)
    assert runlist("daemon", "--install", "--group", "daemon") == 0
    assert (
        read(tmp_path / "runlist.socket")["Socket"] | {"SocketMode": "0660", "SocketGroup": "daemon"}
        == (read(tmp_path / "runlist.socket")["Socket"])
    )
    assert read(tmp_path / "runlist.service")["Service"]["ExecStart"].endswith(" daemon --group daemon")
    assert runlist("daemon", "--install", "--user", "--group", "daemon") == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--install", "--uninstall"], ["--install", "--status"], ["--user"], ["--uninstall", "--policy", "fair"],
        ["--install", "--policy", "nonsense"], ["--install", "--rules", "/nonexistent"], ["--install", "--json"],
    ],
)  # fmt: skip
def test_words_that_cannot_be_meant_write_nothing(words: list[str], home: Path) -> None:
    assert runlist("daemon", *words) == 2 or runlist("daemon", *words, "--user") == 2
    assert not home.exists()


@needs_root
def test_without_the_right_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(units, "SYSTEM", tmp_path)
    with pytest.raises(Refused, match=r"Permission denied: be root, or take --user"):
        As(NOBODY)(lambda: units.install(tmp_path, {"runlist.service": "x"}))
    with pytest.raises(RunlistError, match=r"/proc/nowhere: .*: name another folder by XDG_CONFIG_HOME$"):
        units.install(Path("/proc/nowhere"), {"runlist.service": "x"})  # --user was taken


def test_words_that_no_unit_can_hold_are_refused() -> None:
    with pytest.raises(UsageError, match="no unit"):
        units.contents(True, "/bin/runlist", ["--rules", "a\nb"], None)


def test_the_units_in_deploy_are_those_that_are_installed() -> None:
    for name in units.UNITS:
        assert (ROOT / "deploy" / "systemd" / name).read_text() in units.contents(False, "/usr/bin/runlist", [], None)[
            name
        ]


@pytest.mark.parametrize("user", [False, True])
def test_the_end_of_a_helper_for_want_of_memory_is_not_the_daemon_s(user: bool, tmp_path: Path) -> None:
    """systemd stops a whole service for that where it is not told otherwise."""
    (tmp_path / "unit").write_text(units.contents(user, "/usr/bin/runlist", [], None)["runlist.service"])
    assert read(tmp_path / "unit")["Service"]["OOMPolicy"] == "continue"
