"""What annotations become: every dialect, and all that can be wrong with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import pytest

from runlist.integrations.node.dialects import PRIORITY_CLASSES, Asked
from runlist.integrations.node.drop_ins import rule_text
from runlist.integrations.node.pods import Pod, of_use
from runlist.integrations.node.quantities import quantity
from runlist.integrations.node.wanted import Wanted, wanted

GIB = 1 << 30
NV = "nvidia.com/container.main.gpu-memory."
HAMI = "hami.io/vgpu-devices-allocated"
POD = "pod:shop/web-0/u1"


def of(
    annotations: Mapping[str, str], container: str = "main", names: tuple[str, ...] = ("main",),
    memory: int | None = 80 * GIB, granted: Mapping[str, str] | None = None, **pod: Any,
) -> Wanted:  # fmt: skip
    about = Pod("u1", "web-0", "shop", annotations, **pod)
    return wanted(Asked(about, container, names, lambda: memory, PRIORITY_CLASSES, granted or {}))


def settings(annotations: Mapping[str, str], **more: Any) -> dict[str, str]:
    """The settings, where nothing is wrong."""
    found = of(annotations, **more)
    assert not found.notes
    return found.settings


def test_nothing_said_is_one_job_with_the_weight_of_everybody() -> None:
    assert settings({}) == {"group": POD}


def test_our_own_keys_for_the_pod_and_for_a_container() -> None:
    annotations = {
        "runlist.dev/class": "latency",
        "runlist.dev/weight": "20",
        "runlist.dev/cap": "50%",
        "runlist.dev/memory": "8Gi",
        "runlist.dev/p99": "5ms",
        "side.runlist.dev/weight": "3",
    }
    whole = {"class": "latency", "weight": "20", "cap": "50%", "memory": "8Gi", "p99": "5ms"}
    assert settings(annotations) == {**whole, "group": POD}
    assert settings(annotations, container="side") == {**whole, "weight": "3", "group": "container"}


@pytest.mark.parametrize(
    ("word", "group"),
    [("pod", POD), ("container", "container"), ("none", "none"), ("team.a-1", "namespace:shop/team.a-1")],
)
def test_groups(word: str, group: str) -> None:
    assert settings({"runlist.dev/group": word})["group"] == group


@pytest.mark.parametrize("word", ["", "a b", "../other", "x" * 64, "namespace:other/x", "-a"])
def test_nobody_names_a_group_outside_the_namespace(word: str) -> None:
    found = of({"runlist.dev/group": word})
    assert found.settings == {"group": POD}
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("request_", "limit", "memory", "weight"),
    [
        ("8Gi", "16Gi", 16 * GIB, "10"),
        ("8Gi", None, 8 * GIB, "10"),
        (None, "1024M", 1024 * 10**6, "1"),
        ("80Gi", "80Gi", 80 * GIB, "100"),
        ("1e9", None, 10**9, "1"),
    ],
)
def test_nv_fractions(request_: str | None, limit: str | None, memory: int, weight: str) -> None:
    given = {NV + "request": request_, NV + "limit": limit}
    found = settings({key: value for key, value in given.items() if value is not None})
    assert found == {"memory": str(memory), "weight": weight, "group": "container"}


def test_nv_fractions_of_another_container_are_not_ours() -> None:
    assert settings({"nvidia.com/container.other.gpu-memory.limit": "8Gi"}) == {"group": POD}


def test_kai_by_fraction_is_weight_and_memory() -> None:
    assert settings({"gpu-fraction": "0.25"}) == {"weight": "25", "memory": str(20 * GIB), "group": POD}
    assert settings({"gpu-fraction": "0.25", "gpu-fraction.limit": "0.5"})["memory"] == str(40 * GIB)


def test_kai_by_memory_in_mebibytes() -> None:
    assert settings({"gpu-memory": "8192"}) == {"weight": "10", "memory": str(8 * GIB), "group": POD}


def test_kai_without_knowing_the_gpus_has_its_weight() -> None:
    found = of({"gpu-fraction": "0.25"}, memory=None)
    assert found.settings == {"weight": "25", "group": POD}
    assert "no limit of memory" in found.notes[0]
    assert settings({"gpu-memory": "8192"}, memory=None) == {"memory": str(8 * GIB), "group": POD}


@pytest.mark.parametrize("container", ["istio", "main", "side"])
def test_kais_fraction_is_its_pods_whichever_container_works(container: str) -> None:
    """A sidecar that used the GPU would weigh 100, and its pod with it: a group has the largest weight in it."""
    fraction, pod = {"gpu-fraction": "0.5"}, {"order": ("istio", "main", "side"), "container": container}
    whole = {"weight": "50", "memory": str(40 * GIB), "group": POD}
    assert settings(fraction, **pod) == whole
    assert settings({**fraction, "gpu-fraction-container-name": " main "}, **pod) == whole
    typo = of({**fraction, "gpu-fraction-container-name": "mian"}, **pod)
    assert typo.settings == whole
    assert "the pod has no such container" in typo.notes[0]


def test_hami_for_the_one_container_that_has_a_gpu() -> None:
    found = settings({HAMI: "GPU-1,NVIDIA,3000,50:;"})
    assert found == {"memory": str(3000 << 20), "cap": "50%", "weight": "50", "group": POD}
    assert settings({HAMI: "GPU-1,NVIDIA,3000,0:;"}) == {"memory": str(3000 << 20), "group": POD}
    assert settings({HAMI: "GPU-1,NVIDIA,1000,100:GPU-2,NVIDIA,2000,100:;"}) == {
        "memory": str(2000 << 20),
        "group": POD,
    }
    assert settings({HAMI: ";"}) == {"group": POD}


def test_hami_with_several_containers_goes_by_their_order() -> None:
    text = {HAMI: "GPU-1,NVIDIA,1000,10:;;GPU-1,NVIDIA,3000,30:;"}
    order = ("first", "idle", "last")
    assert settings(text, container="last", order=order) == {
        "memory": str(3000 << 20), "cap": "30%", "weight": "30", "group": "container",
    }  # fmt: skip
    assert settings(text, container="idle", order=order) == {"group": POD}
    assert settings(text, container="first", names=order)["weight"] == "10"
    assert settings(text, container="last", order=("init", *order))["weight"] == "30", "older ones leave init ones out"
    debugger = of(text, container="debugger-1", order=order, names=(*order, "debugger-1"))
    assert (debugger.settings, debugger.notes) == ({"group": POD}, ()), "it was added to a pod that ran"
    for names in (("last",), ("init", *order)):  # which ones run before the others is not known either
        assert "cannot be told" in of(text, container="last", names=names).notes[0]


def test_hami_resources_where_the_specification_is_known() -> None:
    limits = {"main": {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1"}}
    expected = {"memory": str(3000 << 20), "cap": "30%", "weight": "30", "class": "batch", "group": "container"}
    assert settings({}, limits=limits) == expected
    assert settings({}, limits={"main": {"nvidia.com/gpumem-percentage": "50"}})["memory"] == str(40 * GIB)
    assert settings({}, limits={"main": {"nvidia.com/priority": "0"}})["class"] == "latency"


@pytest.mark.parametrize(("written", "mebibytes"), [("5k", 5000), ("10k", 10000), ("3000", 3000), ("1M", 1000000)])
def test_numbers_as_an_api_server_writes_them(written: str, mebibytes: int) -> None:
    assert settings({}, limits={"main": {"nvidia.com/gpumem": written}})["memory"] == str(mebibytes << 20)


@pytest.mark.parametrize("written", ["", "5.5", "-5", "0", "5 k", "k", "1e99"])
def test_numbers_that_are_none(written: str) -> None:
    found = of({}, limits={"main": {"nvidia.com/gpumem": written}})
    assert found.settings == {"group": POD}
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("class", "deadline", "take latency, normal, batch"),
        ("class", "high", "take latency, normal, batch"),
        ("memory", "0", "0 B let no program use a GPU: give the unit, as in 8G, or max for no limit"),
        ("deadline", "5ms/20ms", "no such key"),
    ],
)
def test_advice_can_be_followed(key: str, value: str, line: str) -> None:
    found = of({f"runlist.dev/{key}": value})
    assert found.settings == {"group": POD}
    assert line in found.notes[0]


def test_priority_classes() -> None:
    assert settings({}, labels={"priorityClassName": "train"})["class"] == "batch"
    assert settings({}, priority_class="inference")["class"] == "latency"
    assert settings({}, priority_class="mine", priority=-5)["class"] == "batch"
    assert "class" not in settings({}, priority_class="mine", priority=1000)
    assert settings({"runlist.dev/class": "normal"}, priority_class="inference")["class"] == "normal"


def test_what_the_device_plugin_granted_goes_first() -> None:
    given = {"runlist.dev/granted-share": "25", "runlist.dev/granted-memory": str(8 * GIB)}
    expected = {"weight": "25", "memory": str(8 * GIB), "group": "container"}
    assert settings({}, granted=given) == expected
    found = of({"runlist.dev/weight": "9999", "runlist.dev/class": "batch"}, granted=given)
    assert found.settings == {**expected, "class": "batch"}
    assert "granted-share=25 says weight=25, and goes first" in found.notes[0]
    found = of(given)
    assert found.settings == {"group": POD}, "a pod's author grants nothing"
    assert len(found.notes) == 2


@pytest.mark.parametrize("word", ["none", "pod", "joint"])
def test_what_was_granted_is_shared_with_no_other_weights(word: str) -> None:
    """A group has the largest weight in it, which another container may have by an annotation; each process would have
    it for itself without one.
    """
    found = of({"runlist.dev/group": word}, granted={"runlist.dev/granted-share": "25"})
    assert found.settings == {"weight": "25", "group": "container"}
    assert f"group={word} is not taken" in found.notes[0]
    assert not of({"runlist.dev/group": "container"}, granted={"runlist.dev/granted-share": "25"}).notes


def test_three_dialects_at_once_are_taken_setting_by_setting() -> None:
    found = of(
        {
            "runlist.dev/class": "batch",
            NV + "limit": "16Gi",
            "gpu-fraction": "0.25",
            HAMI: "GPU-1,NVIDIA,3000,40:;",
        }
    )
    assert found.settings == {
        "class": "batch", "memory": str(16 * GIB), "weight": "20", "cap": "40%", "group": "container",
    }  # fmt: skip
    assert found.sources["cap"].startswith(HAMI)
    assert len(found.notes) == 4, "what KAI and HAMi say of memory and weight is something else"
    assert all("goes first" in note for note in found.notes)


def test_what_says_the_same_is_no_contradiction() -> None:
    assert not of({NV + "request": "8Gi", "gpu-memory": "8192", HAMI: "GPU-1,NVIDIA,8192,0:;"}).notes
    assert not of({"runlist.dev/weight": "7", "gpu-fraction": "0.5"}).notes, "ours is there to say something else"


@pytest.mark.parametrize(
    "annotations",
    [
        {"runlist.dev/weight": "-5"},
        {"runlist.dev/weight": "1e9"},
        {"runlist.dev/weight": "9" * 400},
        {"runlist.dev/weight": "\u0661\u0660"},
        {"runlist.dev/cap": "200%"},
        {"runlist.dev/memory": "8 potatoes"},
        {"runlist.dev/memory": "1"},
        {"runlist.dev/memory": "9999999P"},
        {"runlist.dev/class": "deadline"},
        {"runlist.dev/class": "root"},
        {"runlist.dev/p99": "-1ms"},
        {"runlist.dev/nice": "1"},
        {"runlist.dev/": "1"},
        {"main.runlist.dev/weight": "ten"},
        {"gpu-fraction": "0"},
        {"gpu-fraction": "1.5", "gpu-memory.limit": "half"},
        {"gpu-fraction": "nan"},
        {"gpu-memory": "8Gi"},
        {"gpu-memory": "-8"},
        {NV + "limit": "-1Gi"},
        {NV + "limit": "99999999999Ti"},
        {NV + "limit": ""},
        {HAMI: "GPU-1"},
        {HAMI: "GPU-1,NVIDIA,-3000,50"},
        {HAMI: "GPU-1,NVIDIA,3000,5000"},
        {HAMI: "GPU-1,NVIDIA,999999999999999,0"},
        {HAMI: "x" * (1 << 20)},
        {"runlist.dev/weight": "\x1b[2J\x1b]0;owned\x07"},
        {"runlist.dev/weight\n[[rule]]": "1"},
    ],
)
def test_nonsense_is_noted_and_takes_nothing_from_what_is_in_order(annotations: dict[str, str]) -> None:
    found = of({**annotations, "side.runlist.dev/class": "batch"}, labels={"priorityClassName": "train"})
    assert found.notes
    assert all(note.isprintable() and len(note) < 600 for note in found.notes)
    assert found.settings["class"] == "batch", "the next dialect is asked"
    document = tomllib.loads(rule_text("a" * 64, {"pod": "web-0"}, found.settings))
    assert document["rule"][0]["set"] == found.settings


@pytest.mark.parametrize(
    "name",
    ["mian.runlist.dev/memory", "shop.main.runlist.dev/memory", f"{NV}limit".replace("main", "mian")],
)
def test_a_container_that_a_pod_does_not_have_is_a_slip_of_the_pen(name: str) -> None:
    given = {name: "8Gi"}
    found = of(given, order=("first", "main"))
    assert found.settings == {"group": POD}
    assert "the pod has no such container" in found.notes[0]
    assert not of(given, order=("mian", "shop.main", "main")).notes
    assert not of(given, order=("main",), names=("main", "mian", "shop.main")).notes, "one for debugging"
    assert not of(given).notes, "which there are is not known: it may come"


def test_settings_that_cannot_be_meant_together_lose_the_later_one() -> None:
    found = of({"runlist.dev/class": "batch", "runlist.dev/p99": "5ms"})
    assert found.settings == {"class": "batch", "group": POD}
    assert "p99" in found.notes[0]


def test_a_thousand_wrong_annotations_are_a_few_notes() -> None:
    found = of({f"runlist.dev/key{number}": "1" for number in range(1000)})
    assert len(found.notes) <= 17
    assert found.notes[-1].startswith("and ")


def test_names_write_no_rules() -> None:
    evil = 'x"\n[[rule]]\nset = { class = "latency" }\n#'
    labels = {"pod": evil, "namespace": "\\", "container": "\x1b[2J" + "y" * 999}
    document = tomllib.loads(rule_text("a" * 64, labels, {"weight": "1"}))
    assert [*document] == ["rule"]
    assert len(document["rule"]) == 1
    found = document["rule"][0]
    assert found["set"] == {"weight": "1"}
    assert found["labels"]["namespace"] == "\\"
    assert all(text.isprintable() and len(text) <= 253 for text in found["labels"].values())


def test_only_what_is_read_is_kept_of_annotations() -> None:
    many = {f"example.com/{number}": "x" for number in range(1000)} | {"huge": "x" * (1 << 20)}
    kept = of_use({**many, "runlist.dev/weight": "1", HAMI: "y" * (1 << 20)})
    assert set(kept) == {"runlist.dev/weight", HAMI}
    assert len(kept[HAMI]) <= (1 << 16) + 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8), ("8k", 8_000), ("8M", 8 * 10**6), ("1.5G", 1_500_000_000), ("8T", 8 * 10**12), ("12e3", 12_000),
        ("8Ki", 8 << 10), ("8Mi", 8 << 20), ("1.5Gi", 3 << 29), ("8Ti", 8 << 40),
    ],
)  # fmt: skip
def test_quantities_as_kubernetes_means_them(text: str, size: int) -> None:
    assert quantity(text) == size
