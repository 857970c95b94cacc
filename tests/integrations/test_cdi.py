"""`runlist cdi generate`, and the hook that tells the daemon of containers."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import syslog
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlist import interpreter
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rules import Rules
from runlist.errors import RunlistError, UsageError
from runlist.integrations.cdi import generate, hook
from runlist.integrations.cdi.spec import as_yaml, joined, spec, with_drivers
from runlist.integrations.node import drop_ins as kubernetes
from runlist.planes.interface import NodeGpu
from tests.conftest import ON_NVIDIA
from tests.fixtures.cdi_schema import wrong
from tests.fixtures.daemon import NOBODY, Commands, Daemon, needs_root

GiB = 1 << 30
GPUS = [
    NodeGpu("GPU-fef8089b-4820-abfc-e83e-94318197576e", 0, 80 * GiB, minor=0),
    NodeGpu("GPU-two", 1, 80 * GiB, minor=3),
]
ID = "6c0a5b1f" * 8


def made(**changes: Any) -> dict[str, Any]:
    given = {
        "gpus": GPUS, "library": Path("/lib/librunlist.so"), "messages": Path("/run/runlist/tenants"),
        "hook": ["/usr/bin/python3", "-I", "x"], "hook_environment": {"HOME": "/root"},
    }  # fmt: skip
    return spec(**{**given, **changes})


def device(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [device["containerEdits"] for device in found["devices"] if device["name"] == name]
    return one


def nodes(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", ())]


def test_where_no_gpu_is_fit_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sick = NodeGpu("GPU-one", 0, 80 * GiB, sick="it is in MIG mode")
    watch = types.SimpleNamespace(look=lambda _: [sick], close=lambda: None)
    monkeypatch.setattr(generate, "choose_plane", lambda _: types.SimpleNamespace(watch_gpus=lambda: watch))
    with pytest.raises(RunlistError, match="GPU-one: it is in MIG mode"):
        generate.generate(None)


def test_gpus_are_named_by_index_by_uuid_and_together() -> None:
    found = made()
    assert wrong(found) == []
    assert [device["name"] for device in found["devices"]] == ["0", GPUS[0].uuid, "1", "GPU-two", "all"]
    assert nodes(device(found, "0")) == nodes(device(found, GPUS[0].uuid)) == ["/dev/nvidia0"]
    assert nodes(device(found, "1")) == ["/dev/nvidia3"]
    assert nodes(device(found, "all")) == ["/dev/nvidia0", "/dev/nvidia3"]
    assert found["kind"] == "runlist.dev/gpu"


def test_what_is_left_out_leaves_nothing_empty() -> None:
    found = made(library=None, messages=None, hook=())
    assert wrong({**found, "containerEdits": {"env": ["A=b"]}}) == []
    assert not {"env", "mounts", "hooks"} & found["containerEdits"].keys()


def test_the_check_of_the_schema_finds_what_is_wrong() -> None:
    assert wrong([]) == ["spec is no object"]
    for change, said in (
        ({"kind": "gpu"}, "kind"), ({"cdiVersion": "9"}, "cdiVersion"), ({"devices": []}, "devices"),
        ({"more": 1}, "more"),
        ({"devices": made()["devices"] * 2}, "one name"), ({"containerEdits": {"env": ["x"]}}, "env"),
        ({"containerEdits": {"mounts": [{"hostPath": "a", "containerPath": "/a"}]}}, "hostPath"),
        ({"containerEdits": {"hooks": [{"hookName": "before", "path": "/a"}]}}, "hookName"),
    ):  # fmt: skip
        assert any(said in line for line in wrong({**made(), **change})), change


def test_nvidias_own_specification_is_taken_in() -> None:
    theirs = {
        "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "major": 195},
                                                             {"path": "/dev/dri/card1"}]}},
            {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "LD_PRELOAD=/x"],
            "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1", "options": ["ro"]}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["a"]}],
        },
    }  # fmt: skip
    found = with_drivers(made(), json.dumps(theirs), "file")
    assert wrong(found) == []
    assert found["cdiVersion"] == "0.6.0"
    assert nodes(device(found, "0")) == ["/dev/nvidia0", "/dev/dri/card1"]
    every = found["containerEdits"]
    assert every["env"][:2] == ["NVIDIA_VISIBLE_DEVICES=void", "LD_PRELOAD=/opt/runlist/librunlist.so"]
    assert every["mounts"][0]["containerPath"] == "/lib/libcuda.so.1"
    assert [one["hookName"] for one in every["hooks"]] == ["createContainer", "createRuntime", "poststop"]


@pytest.mark.parametrize("text", ["", "kind: x", "[]", "{}", '{"devices": 3}', '{"devices": [{}]}', "[" * 100_000,
                                  '{"devices": [{"name": "7", "containerEdits": {}}]}',
                                  *(json.dumps({"devices": [{"name": "0", "containerEdits": edits}]}) for edits in (
                                      None, [], "x", {"deviceNodes": [{}]}, {"env": [1]}, {"env": {"a": 1}},
                                      {"hooks": 5}, {"hooks": [5]}, {"mounts": "xx"}, {"mounts": [{}]})),
                                  '{"devices": [{"name": "0", "containerEdits": {}}], "containerEdits": [1]}',
                                  ])  # fmt: skip
def test_what_is_no_specification_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="file: "):
        with_drivers(made(), text, "file")


def test_a_version_that_is_none_changes_nothing() -> None:
    for version in (None, "9" * 5000, "0.6.x", 7):
        theirs = {"cdiVersion": version, "devices": [{"name": "0", "containerEdits": {"env": None}}]}
        assert with_drivers(made(), json.dumps(theirs), "file")["cdiVersion"] == made()["cdiVersion"]


def test_edits_of_both_are_there_once() -> None:
    assert joined({"env": ["A=1", "B=2"]}, {"env": ["B=3"]}) == {"env": ["A=1", "B=3"]}
    assert joined({}, {}) == {}


def test_yaml_says_what_json_does() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: tools/setup-node")
    for value in (made(), {"a": [[1, 2], {"b": []}, {}], "c: d": "- x\n#", "e": None}, [{"a": {"b": [1]}}]):
        assert yaml.safe_load(as_yaml(value)) == value


# -- the hook ----------------------------------------------------------------------------------------------------------


def state(status: str, **annotations: str) -> dict[str, Any]:
    named = {f"runlist.dev/{key}": value for key, value in annotations.items()}
    return {"ociVersion": "1.0.2", "id": ID, "pid": 1, "status": status, "bundle": "/b", "annotations": named}


def test_a_container_begins_and_ends(tmp_path: Path) -> None:
    folder = tmp_path / "rules.d"
    assert hook.run(state("created", **{"class": "batch", "weight": "30", "memory": "2G"}), folder) == []
    (path,) = folder.iterdir()
    assert (path.name, stat.S_IMODE(path.stat().st_mode)) == (f"oci-{ID}.toml", 0o600)
    (written,) = tomllib.loads(path.read_text())["rule"]
    assert written == {
        "container": ID, "labels": {"container": ID},
        "set": {"group": "container", "class": "batch", "weight": "30", "memory": "2G"},
    }  # fmt: skip
    assert Rules.of_drop_in(path, path.read_bytes())
    assert hook.run(state("stopped"), folder) == []
    assert hook.run(state("stopped"), folder) == []
    assert not list(folder.iterdir())


def test_of_a_container_that_the_node_agent_knows_its_rule_counts(tmp_path: Path) -> None:
    """It has the pod's namespace, for which an administrator's bounds stand."""
    (tmp_path / "main.toml").write_text('[[bound]]\nlabels = { namespace = "shop" }\nclass = "batch"\n')
    book = RuleBook(Rules.load(tmp_path / "main.toml"))
    hook.run(state("created", **{"class": "latency"}), tmp_path / "rules.d")
    labels = {"namespace": "shop", "pod": "web-0", "container": "main"}
    (tmp_path / "rules.d" / kubernetes.file_name(ID)).write_text(kubernetes.rule_text(ID, labels, {"class": "latency"}))
    for path in (tmp_path / "rules.d").iterdir():
        book.put(path.name, Rules.of_drop_in(path, path.read_bytes()))
    match = book.match(Facts(0, container=ID))
    assert match is not None
    assert (match.labels, match.settings["class"]) == (labels, "batch")


def test_what_an_older_hook_wrote_goes_with_its_container(tmp_path: Path) -> None:
    (tmp_path / f"container-{ID}.toml").touch()
    hook.run(state("stopped"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("group", ["команда", "\N{PARTY POPPER}", 'a"b\\c'])
def test_every_name_that_a_group_may_have_is_written_so_that_the_daemon_reads_it(tmp_path: Path, group: str) -> None:
    assert hook.run(state("created", group=group), tmp_path) == []
    (path,) = tmp_path.glob("*.toml")
    assert tomllib.loads(path.read_text())["rule"][0]["set"] == {"group": group}


@pytest.mark.parametrize(
    ("annotations", "left"),
    [
        ({"weight": "-3"}, {}), ({"class": "gold"}, {}), ({"memory": "2 parsecs"}, {}), ({"burst": "1s"}, {}),
        ({"cap": "10", "class": "x"}, {"cap": "10"}), ({"class": 'batch" }\n[[rule]]\n#'}, {}),
        ({"group": "a\x00b"}, {}), ({"wieght": "30"}, {}), ({"weight": "9" * 10_000}, {}),
        ({"memory": "8Gi", "weight": "1e3"}, {"memory": "8Gi"}),
    ],
)  # fmt: skip
def test_an_annotation_that_is_wrong_is_left_out_and_said(
    annotations: dict[str, str], left: dict[str, str], tmp_path: Path
) -> None:
    said = hook.run(state("created", **annotations), tmp_path)
    assert said
    assert all(line.startswith(f"container {ID[:12]}: runlist.dev/") and len(line) < 500 for line in said)
    (path,) = tmp_path.iterdir()
    assert tomllib.loads(path.read_text())["rule"][0]["set"] == {"group": "container", **left}
    assert Rules.of_drop_in(path, path.read_bytes())


def test_what_is_wrong_is_in_the_systems_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime throws away what a hook that succeeds says."""
    logged: list[str] = []
    monkeypatch.setattr(syslog, "openlog", lambda tag, *_: logged.append(tag))
    monkeypatch.setattr(syslog, "syslog", lambda _, line: logged.append(line))
    given = json.dumps(state("created", wieght="30", **{f"key{number}": "x" for number in range(1000)}))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    monkeypatch.setattr(sys, "argv", ["hook", str(tmp_path)])
    hook.main()
    lines = [line for line in logged if line != "runlist-cdi"]
    assert lines[0].startswith(f"runlist: container {ID[:12]}: runlist.dev/wieght=30: no such key: take class, weight")
    assert len(lines) == 17
    assert lines[-1].endswith("and 985 more")
    assert logged.count("runlist-cdi") == 17


@pytest.mark.parametrize(
    "given",
    [b"", b"{", b"[]", b'{"id": 3}', b'{"id": "../../etc/passwd"}', b'{"id": ""}', b"\xff\xfe", b"[" * 200_000,
     b'{"id": "a", "annotations": [1]}', b'{"id": "' + b"a" * 300 + b'"}'],
)  # fmt: skip
def test_a_hook_never_keeps_a_container_from_starting(given: bytes, tmp_path: Path) -> None:
    words = interpreter.command("runlist.integrations.cdi.hook", str(tmp_path / "rules.d"))
    done = subprocess.run(words, input=given, cwd="/", env={}, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.startswith(b"runlist: ")
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "rules.d").exists() or not list((tmp_path / "rules.d").iterdir())


STUCK = """
import syslog, sys, time
from runlist.integrations.cdi import hook
syslog.syslog = lambda *_: time.sleep(300)
hook.main()
"""


def test_a_log_that_stands_still_keeps_no_container_from_starting(tmp_path: Path) -> None:
    given = json.dumps(state("created", weight="none")).encode()
    words = [sys.executable, "-c", STUCK, str(tmp_path / "rules.d")]
    done = subprocess.run(words, input=given, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert b"runlist.dev/weight=none" in done.stderr
    assert len(list((tmp_path / "rules.d").iterdir())) == 1


def test_a_folder_that_others_can_write_gets_no_rules(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(RunlistError, match="others can write"):
        hook.run(state("created"), tmp_path)
    tmp_path.chmod(0o700)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(ON_NVIDIA, reason="for an emulated GPU")
def test_the_command_writes_what_a_runtime_reads(commands: Commands, daemon: Daemon, tmp_path: Path) -> None:
    found = json.loads(commands.ok("cdi", "generate"))
    assert wrong(found) == []
    every = found["containerEdits"]
    tenants = {one["containerPath"]: one["hostPath"] for one in every["mounts"]}["/run/runlist"]
    assert os.listdir(tenants) == ["messages.sock"]
    assert os.path.samefile(f"{tenants}/messages.sock", commands.folder / "messages.sock")
    assert all(Path(one["hostPath"]).exists() for one in every["mounts"])
    commands.ok("cdi", "generate", "--output", str(tmp_path / "etc" / "a.yaml"), "--no-hook", "--no-preload")
    text = (tmp_path / "etc" / "a.yaml").read_text()
    assert text.startswith('"cdiVersion": "0.5.0"\n')
    assert "LD_PRELOAD" not in text
    assert "createRuntime" not in text
    assert stat.S_IMODE((tmp_path / "etc" / "a.yaml").stat().st_mode) == 0o644
    assert "take json or yaml" in commands.fails(2, "cdi", "generate", "--format", "xml")
    assert "cannot be written" in commands.fails(1, "cdi", "generate", "--output", "/proc/none/a.json")
    assert "no others" in commands.fails(2, "cdi", "generate", "--output", str(tmp_path / "etc" / "runlist"))
    assert os.listdir(tmp_path / "etc") == ["a.yaml"]
    theirs = "kind: nvidia.com/gpu\n"
    (tmp_path / "theirs.yaml").write_text(theirs)
    assert "take another name" in commands.fails(2, "cdi", "generate", "--output", str(tmp_path / "theirs.yaml"))
    assert (tmp_path / "theirs.yaml").read_text() == theirs
    for _ in range(2):
        commands.ok("cdi", "generate", "--output", str(tmp_path / "ours.json"))
    twice = commands.fails(2, "cdi", "generate", "--output", str(tmp_path / "more.yaml"))
    assert f"{tmp_path / 'ours.json'} has these devices, too" in twice  # engines would take neither
    assert not (tmp_path / "more.yaml").exists()
    assert "--format=json" in commands.fails(2, "cdi", "generate", "--with", str(tmp_path / "theirs.yaml"))
    (tmp_path / "binary").write_bytes(b"\xff")
    assert "binary: not UTF-8 text: name" in commands.fails(2, "cdi", "generate", "--with", str(tmp_path / "binary"))
    missing = commands.fails(2, "cdi", "generate", "--with", str(tmp_path / "none"))
    assert missing.rstrip().endswith("none: it cannot be read: No such file or directory")


@needs_root
@pytest.mark.skipif(ON_NVIDIA, reason="for an emulated GPU")
def test_no_specification_comes_from_others_or_goes_where_they_can_swap_it(commands: Commands, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (tmp_path / "link").symlink_to("theirs")
    for folder in (theirs, theirs / "new", tmp_path / "link"):
        assert "belongs to" in commands.fails(3, "cdi", "generate", "--output", str(folder / "a.json"))
    assert not list(theirs.rglob("*.json"))
    every = {"devices": [{"name": "all", "containerEdits": {"hooks": [{"path": "/tmp/evil"}]}}]}
    given = theirs / "given.json"
    given.write_text(json.dumps(every))
    assert "belongs to" in commands.fails(3, "cdi", "generate", "--with", str(given))
    os.mkfifo(tmp_path / "pipe")
    assert "not a file" in commands.fails(2, "cdi", "generate", "--with", str(tmp_path / "pipe"))


@pytest.mark.skipif(ON_NVIDIA, reason="for an emulated GPU")
def test_a_daemon_that_is_started_again_is_where_containers_look(
    commands: Commands, start_daemon: Callable[..., Daemon]
) -> None:
    folder = commands.folder / "tenants"
    found = set()
    for _ in range(3):
        daemon = start_daemon()
        found.add(folder.stat().st_ino)
        assert os.path.samefile(folder / "messages.sock", commands.folder / "messages.sock")
        daemon.kill()
    assert len(found) == 1  # a mount of the folder goes on showing the socket


def test_the_hook_reads_no_more_than_a_state(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stdin:
        buffer = io.BytesIO(b" " * (3 << 20))

    monkeypatch.setattr("sys.stdin", Stdin)
    hook.main()
    assert Stdin.buffer.tell() == hook.MOST_STATE
    assert "runlist: " in capsys.readouterr().err
