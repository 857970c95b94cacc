"""Readers of what the authors of pods and containers write: annotations, names, and what Prometheus is told of them."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Facts, Rules
from runlist.errors import RunlistError, UsageError
from runlist.integrations.cdi import hook
from runlist.integrations.exporter.workloads import clean, labels_of
from runlist.integrations.exporter.writer import write
from runlist.integrations.node.dialects import PRIORITY_CLASSES, Asked
from runlist.integrations.node.drop_ins import rule_text
from runlist.integrations.node.pods import Pod, of_use
from runlist.integrations.node.wanted import wanted
from runlist.settings.table import apply_changes, parse_settings
from tests.fixtures.mutation import Texts
from tests.hostile.read_files import BOUNDS
from tests.hostile.reader import Reader

CONTAINER, OTHER = "a" * 64, "b" * 64
LONGEST_NOTE = 1000
_BETWEEN, _OF = "\x1e", "\x1f"
"""Between annotations, and between a key and its value: all else may be in either."""


def _taken(path: Path, text: bytes) -> Rules:
    """The rules of a drop-in of ours, which the daemon never refuses."""
    try:
        return Rules.of_drop_in(path, text)
    except UsageError as error:
        raise AssertionError(f"{error}: {text!r}") from None


def _annotations(*lines: str) -> bytes:
    return _BETWEEN.join(line.replace("=", _OF, 1) for line in lines).encode()


PODS = [
    _annotations("name=web-0", "namespace=shop", "uid=5b1c", "runlist.dev/weight=20", "main.runlist.dev/memory=8Gi"),
    _annotations("name=web-0", "namespace=shop", "runlist.dev/class=latency", "runlist.dev/p99=5ms", "uid=1",
                 "main.runlist.dev/cap=30%"),
    _annotations("namespace=team-a", "runlist.dev/group=team.a-1", "runlist.dev/cap=30ms/100ms",
                 "side.runlist.dev/weight=3"),
    _annotations("gpu-fraction=0.25", "gpu-fraction.limit=0.5", "gpu-memory=8192", "gpu-memory.limit=16Gi",
                 "gpu-fraction-container-name=main"),
    _annotations("nvidia.com/container.main.gpu-memory.request=8Gi", "nvidia.com/container.main.gpu-memory.limit=16e9"),
    _annotations("hami.io/vgpu-devices-allocated=GPU-1,NVIDIA,3000,30:GPU-2,NVIDIA,10,0:;;GPU-1,NVIDIA,1,100:;"),
    _annotations('name=x"\n[[rule]]\nset.class = "latency"\n#', "namespace=shop\\", "runlist.dev/weight=20"),
    _annotations("runlist.dev/granted-share=25", "runlist.dev/granted-memory=20Gi", "runlist.dev/group=none"),
]  # fmt: skip


def annotations(folder: Path) -> Reader:
    """Whatever a pod says: there is one rule, for its container, which the daemon takes; it is within the bounds, joins
    no group but those of its namespace, and what is wrong is told in a few lines.
    """
    main = folder / "main.toml"
    main.write_text(BOUNDS)

    def read(text: bytes) -> None:
        pairs = (word.partition(_OF) for word in text.decode(errors="replace").split(_BETWEEN))
        told = {key: value for key, _, value in pairs}
        name, namespace, uid = (told.pop(key, key) for key in ("name", "namespace", "uid"))
        pod = Pod(uid, name, namespace, of_use(told), labels=of_use(told), order=("main", "side", "last"))
        found = wanted(Asked(pod, "main", ("main", "side"), lambda: 80 << 30, PRIORITY_CLASSES))
        assert all(note.isprintable() and len(note) <= LONGEST_NOTE for note in found.notes)
        assert len(found.notes) <= 17
        labels = {"pod": name, "namespace": namespace, "container": "main"}
        book = RuleBook(Rules.load(main))
        rules = _taken(folder / "x.toml", rule_text(CONTAINER, labels, found.settings).encode())
        assert len(rules.rules) == 1
        book.put("x.toml", rules)
        assert book.match(Facts(0, "python", f"/kubepods/{OTHER}", OTHER)) is None
        match = book.match(Facts(0, "python", f"/kubepods/{CONTAINER}", CONTAINER))
        assert match is not None
        group = match.settings["group"]
        ours = (f"pod:{namespace}/{name}/{uid}", f"namespace:{namespace}/")
        known = tuple("".join(one if one.isprintable() else "?" for one in text).replace(" ", "_") for text in ours)
        assert group == f"container:{CONTAINER}" or group.startswith(known[1]) or group == known[0][:1024]
        task = apply_changes(parse_settings(match.settings))
        if namespace:  # the bounds are of any
            assert task.task_class in ("normal", "batch")
            assert task.weight <= 200
            assert task.cap is not None
            assert task.cap.fraction <= 0.5
        if found.notes:
            raise UsageError(found.notes[0])

    words = (b"runlist.dev/", b"main.", b"cgroup", b"container", b"user", b"pod", b"none", b"max", b"Gi", b"%",
             _BETWEEN.encode(), _OF.encode(), b'"', b"\n", b"\\", b"[[rule]]",
             b"pod:other/web-0/1", b"namespace:other/x", b"granted-share")  # fmt: skip
    return Reader(Texts(PODS, words, "annotations"), read)


STATES = [
    json.dumps({"ociVersion": "1.0.2", "id": CONTAINER, "status": "creating", "pid": 4, "bundle": "/b",
                "annotations": {"runlist.dev/class": "batch", "runlist.dev/weight": "30", "other": "x"}}).encode(),
    json.dumps({"id": "web.1_a-b", "status": "stopped", "annotations": None}).encode(),
    json.dumps({"id": "x", "annotations": {"runlist.dev/memory": "2G", "runlist.dev/group": 'te"am\\'}}).encode(),
]  # fmt: skip


def container_state(folder: Path) -> Reader:
    """Whatever an engine says: a file of that container's name in that folder, or none, and nothing else."""
    rules = folder / "rules.d"
    rules.mkdir(mode=0o700)
    beside = {path.name for path in folder.iterdir()}

    def read(text: bytes) -> None:
        state = json.loads(text)
        wrong = hook.run(state, rules)
        assert all(isinstance(line, str) for line in wrong)
        assert {path.name for path in folder.iterdir()} == beside
        for path in rules.iterdir():
            identity = path.name.removeprefix("oci-").removesuffix(".toml")
            match = _taken(path, path.read_bytes()).match(Facts(0, "python", "/x", identity))
            assert match is not None
            assert match.labels == {"container": identity}
            path.unlink()

    words = (b'"id"', b'"annotations"', b'"runlist.dev/weight"', b"../x", b"/etc/passwd", b"stopped")
    return Reader(Texts(STATES, words, "states"), read, refuses=(RunlistError, ValueError, RecursionError))


LABELS = [b"web-0\x1fshop\x1fmain", b'web "0"\\\x1fa\nb\x1f} 1\nfake 2', b"# TYPE x counter\x1f\r\x1f\xe2\x80\xa8"]


def metrics(_: Path) -> Reader:
    """Whatever a pod is called, both formats have it as one label of one series, by Prometheus' own parsers."""

    def read(text: bytes) -> None:
        pod, namespace, container, *_ = [*text.decode(errors="surrogateescape").split(_OF), "", ""]
        told = {"pod": pod, "namespace": namespace, "container": container}
        labels = labels_of("GPU-1", 0, CONTAINER, told)
        family = Family("runlist_test", "a test", "gauge")
        family.add_sample("runlist_test", labels, 2.0)
        for parse, new in ((plain, False), (openmetrics, True)):
            (found,) = parse(write([family], openmetrics=new).decode())
            (sample,) = found.samples
            assert sample.labels == labels
            assert (sample.name, sample.value) == ("runlist_test", 2.0)
        if clean(pod) != pod:
            raise UsageError("its name is not shown as it is")

    return Reader(Texts(LABELS, (_OF.encode(), b"\n", b'"', b"\\", b"\r"), "labels"), read)
