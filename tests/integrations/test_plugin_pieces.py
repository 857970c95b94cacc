"""Pieces of GPUs: their ids, which are preferred, and what a set of them is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from runlist.errors import UsageError
from runlist.integrations.cdi import spec
from runlist.integrations.kubernetes import names
from runlist.integrations.node.dialects import Asked, granted
from runlist.integrations.node.pods import Pod
from runlist.integrations.plugin import run
from runlist.integrations.plugin.given import Ways, response
from runlist.integrations.plugin.ids import GIB, LONGEST_ID, device_id, split_id
from runlist.integrations.plugin.pieces import Resource, Taken
from runlist.integrations.plugin.run import CDI_FILE, Choices
from runlist.integrations.plugin.service import PAIR_S, Gpus, Pairs, Service
from runlist.planes.interface import NodeGpu

A, B, C = (f"GPU-fef8089b-4820-abfc-e83e-94318197576{end}" for end in "abc")
GPUS = [NodeGpu(A, 0, 141 * GIB), NodeGpu(B, 1, 80 * GIB + 17), NodeGpu(C, 2, 80 * GIB)]
SHARE, MEMORY = Resource(names.SHARE_RESOURCE), Resource(names.MEMORY_RESOURCE)


def ids(resource: Resource, gpu: str, numbers: range) -> list[str]:
    return [device_id(resource.name, gpu, number) for number in numbers]


def test_each_gpu_has_a_hundred_shares_and_its_whole_gibibytes() -> None:
    assert [len(SHARE.ids(gpu)) for gpu in GPUS] == [100, 100, 100]
    assert [len(MEMORY.ids(gpu)) for gpu in GPUS] == [141, 80, 80]
    every = [text for resource in (SHARE, MEMORY) for gpu in GPUS for text in resource.ids(gpu)]
    assert len(set(every)) == len(every)
    assert max(map(len, every)) <= LONGEST_ID


def test_an_id_says_what_it_is_of() -> None:
    assert split_id(SHARE.name, f"{A}::p07") == (A, 7)
    assert split_id(MEMORY.name, f"{A}::m140") == (A, 140)


@pytest.mark.parametrize("text", ["", A, f"{A}::p7", f"{A}::p007", f"{A}::m07", f"{A}::p07 ", f"{A}::p-1", "::p07",
                                  f"{A}::p\u0660\u0667", "x" * 10_000, f"{A}\n::p07", "\0::p07"])  # fmt: skip
def test_what_is_no_id_of_a_resource_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no id"):
        split_id(SHARE.name, text)


def test_pieces_of_one_gpu_and_whole_gpus_are_taken() -> None:
    assert SHARE.taken(ids(SHARE, B, range(30, 60)), GPUS) == Taken((B,), 30)
    assert SHARE.taken(SHARE.ids(GPUS[2]) + SHARE.ids(GPUS[0]), GPUS) == Taken((A, C), 100)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ([], "nothing"),
        (ids(SHARE, "GPU-another", range(3)), "not offered"),
        (ids(SHARE, A, range(99, 101)), "not offered"),
        (ids(MEMORY, A, range(3)), "no id"),
        (ids(SHARE, A, range(3)) * 2, "twice"),
        (ids(SHARE, A, range(30)) + ids(SHARE, B, range(20)), "pieces of several"),
        (ids(SHARE, A, range(100)) + ids(SHARE, B, range(50)), "pieces of several"),
        ([*ids(SHARE, A, range(100)), "x" * 100_000], "no id"),
    ],
)
def test_anything_else_is_refused(asked: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        SHARE.taken(asked, GPUS)


def test_a_gpu_that_is_not_fit_gives_nothing() -> None:
    sick = [NodeGpu(A, 0, 141 * GIB, sick="XID 48"), *GPUS[1:]]
    with pytest.raises(UsageError, match="XID 48"):
        SHARE.taken(ids(SHARE, A, range(3)), sick)
    assert SHARE.taken(ids(SHARE, B, range(3)), sick).gpus == (B,)


def test_the_fullest_gpu_with_room_is_preferred() -> None:
    free = [*ids(SHARE, A, range(100)), *ids(SHARE, B, range(40)), *ids(SHARE, C, range(20))]
    for size, expected in ((20, C), (21, B), (40, B), (41, A), (1, C)):
        assert {split_id(SHARE.name, text)[0] for text in SHARE.preferred(free, [], size, GPUS)} == {expected}


def test_what_must_be_in_decides_the_gpu() -> None:
    free = [*ids(SHARE, A, range(100)), *ids(SHARE, C, range(20))]
    needed = ids(SHARE, A, range(7, 9))
    chosen = SHARE.preferred(free, needed, 20, GPUS)
    assert chosen[:2] == needed
    assert len(set(chosen)) == 20
    assert {split_id(SHARE.name, text)[0] for text in chosen} == {A}


def test_the_gpu_of_the_other_resource_comes_first_if_it_has_room() -> None:
    free = [*ids(SHARE, A, range(100)), *ids(SHARE, C, range(20))]
    assert split_id(SHARE.name, SHARE.preferred(free, [], 10, GPUS, first=A)[0])[0] == A
    assert split_id(SHARE.name, SHARE.preferred(free, [], 50, GPUS, first=C)[0])[0] == A


def test_more_than_a_gpu_is_whole_ones() -> None:
    free = [*ids(SHARE, A, range(60)), *ids(SHARE, B, range(100)), *ids(SHARE, C, range(100))]
    assert SHARE.taken(SHARE.preferred(free, [], 200, GPUS), GPUS) == Taken((B, C), 100)


@given(st.integers(0, 2**32), st.integers(-5, 400))
def test_a_preference_is_of_what_is_there_and_no_larger_than_asked(seed: int, size: int) -> None:
    draw = random.Random(seed)
    every = [text for gpu in GPUS for text in SHARE.ids(gpu)]
    free = [*draw.sample(every, draw.randint(0, len(every))), "nonsense", f"{A}::p999"]
    needed = draw.sample(free[:-2], min(draw.randint(0, 5), max(len(free) - 2, 0)))
    chosen = SHARE.preferred(free, needed, size, GPUS)
    assert len(chosen) == len(set(chosen)) <= max(size, 0)
    assert set(chosen) <= set(free) | set(needed)
    counts = [sum(text.startswith(gpu.uuid) for text in free) for gpu in GPUS]
    if not needed and any(0 < size <= count for count in counts):
        assert len({text.partition("::")[0] for text in chosen}) == 1


def test_packing_leaves_room_for_large_ones() -> None:
    """A thousand requests that come and go: as long as some GPU has enough left, none is spread over two."""
    draw, taken = random.Random(12), {}
    every = {text for gpu in GPUS for text in SHARE.ids(gpu)}
    for number in range(1000):
        if taken and draw.random() < 0.5:
            del taken[draw.choice(list(taken))]
            continue
        free = every - {text for held in taken.values() for text in held}
        size = draw.choice([10, 20, 25, 30, 50])
        if max(sum(text.startswith(gpu.uuid) for text in free) for gpu in GPUS) < size:
            continue
        chosen = SHARE.preferred(free, [], size, GPUS)
        assert SHARE.taken(chosen, GPUS).pieces == size
        taken[number] = chosen


def test_a_share_alone_is_one_of_memory_too() -> None:
    share = response(SHARE, Taken((B,), 25), GPUS, Ways(None, None))
    quarter = str((80 * GIB + 17) // 4)
    assert share.annotations == {
        names.GRANTED_SHARE: "25",
        names.GRANTED_GPUS: B,
        names.GRANTED_MEMORY: quarter,
        names.GRANTED_MEMORY_GPUS: B,
    }
    assert share.envs["RUNLIST_MEMORY"] == quarter
    whole = response(SHARE, Taken((B, C), 100), GPUS, Ways(None, None))
    assert "RUNLIST_MEMORY" not in whole.envs
    assert whole.envs["NVIDIA_VISIBLE_DEVICES"] == f"{B},{C}"


def test_by_cdi_the_names_of_devices_are_given_and_nothing_else() -> None:
    given = response(SHARE, Taken((A,), 10), GPUS, Ways(None, None, cdi=True, others="nvidia.com/gpu"))
    assert [one.name for one in given.cdi_devices] == [f"nvidia.com/gpu={A}", f"runlist.dev/gpu={A}"]
    assert not given.mounts
    assert not given.devices
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_specification_follows_the_devices_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's modules may come after the plugin, and a device node with them."""
    choices, file, late = Choices(cdi=tmp_path), tmp_path / CDI_FILE, tmp_path / "nvidia-uvm"
    monkeypatch.setattr(spec, "DEVICE_NODES", (str(late),))
    before = run._keep(choices, GPUS, Ways(None, None), "")
    assert str(late) not in file.read_text()
    written = file.stat().st_ino
    assert run._keep(choices, GPUS, Ways(None, None), before) == before
    assert file.stat().st_ino == written
    late.touch()
    assert run._keep(choices, GPUS, Ways(None, None), before) == file.read_text() != before
    assert str(late) in file.read_text()
    file.write_text('{"kind": "example.com/gpu"}')
    assert run._keep(choices, GPUS, Ways(None, None), "") == ""
    assert "example.com" in file.read_text(), "it is somebody else's"


def test_a_share_and_memory_right_after_one_another_are_a_pair() -> None:
    now = [100.0]
    pairs = Pairs(lambda: now[0])

    def elsewhere(resource: Resource, gpu: str) -> str:
        return pairs.allocated(resource.name, Taken((gpu,), 10))

    assert pairs.near(SHARE.name) == ""
    assert elsewhere(SHARE, A) == ""
    assert pairs.near(MEMORY.name) == A
    assert pairs.near(SHARE.name) == ""  # two containers with a share alone
    assert elsewhere(MEMORY, A) == ""
    assert pairs.near(SHARE.name) == A  # the share may have been another container's
    assert elsewhere(SHARE, B) == ""
    assert elsewhere(MEMORY, C) == B
    assert elsewhere(MEMORY, B) == ""
    now[0] += PAIR_S + 1
    assert pairs.near(SHARE.name) == ""
    assert elsewhere(SHARE, C) == ""


def test_a_gpu_is_spent_for_the_one_that_has_nothing_left_of_the_other() -> None:
    pairs = Pairs()
    pairs.told(MEMORY.name, MEMORY.left([*ids(MEMORY, A, range(10)), *ids(MEMORY, B, range(5)), "nonsense"], GPUS))
    assert pairs.spent(SHARE.name) == {C}
    assert pairs.spent(MEMORY.name) == set()
    pairs.allocated(MEMORY.name, Taken((A,), 10))
    assert pairs.near(SHARE.name) == A  # it may be the same container's
    assert pairs.spent(SHARE.name) == {A, C}
    free = [text for gpu in GPUS for text in SHARE.ids(gpu)]
    chosen = SHARE.preferred(free, [], 10, GPUS, last=pairs.spent(SHARE.name))
    assert {split_id(SHARE.name, text)[0] for text in chosen} == {B}
    pairs.told(MEMORY.name, MEMORY.left(ids(MEMORY, A, range(10)), GPUS))
    assert pairs.spent(SHARE.name) == {B, C}


def settings_of_granted(annotations: Mapping[str, str]) -> dict[str, str]:
    """What the node agent makes of a container's annotations, beside a pod whose author asks for more."""
    pod = Pod("uid", "web", "shop", {"runlist.dev/weight": "9999"})
    wishes = list(granted(Asked(pod, "main", ("main",), lambda: None, {}, dict(annotations))))
    return {wish.key: wish.value for wish in wishes if not wish.wrong}


def test_the_node_agent_makes_settings_of_what_was_granted() -> None:
    """By the annotations that the kubelet puts on the container, whatever the pod's author writes."""
    share = response(SHARE, Taken((A,), 30), GPUS, Ways(None, None, memory_follows=False))
    memory = response(MEMORY, Taken((A,), 20), GPUS, Ways(None, None))
    assert settings_of_granted({**share.annotations, **memory.annotations}) == {
        "weight": "30",
        "memory": str(20 * GIB),
    }


@pytest.mark.parametrize("text", ["", "-3", "0", "101", "1e9", "9" * 5000, "\u0663", "x"])
def test_annotations_that_make_no_sense_grant_nothing(text: str) -> None:
    assert settings_of_granted({names.GRANTED_SHARE: text}) == {}


def test_the_kubelet_is_told_again_of_what_changed_alone() -> None:
    async def lists() -> list[list[str]]:
        gpus = Gpus(GPUS[:2])
        service = Service(SHARE, gpus, lambda: Ways(None, None), Pairs())
        told: list[list[str]] = []

        async def listen() -> None:
            async for answer in service.ListAndWatch(None, None):
                told.append(sorted({one.health for one in answer.devices}))  # noqa: PERF401 - it has no end

        listening = asyncio.create_task(listen())
        same = [NodeGpu(A, 0, 141 * GIB), NodeGpu(B, 1, 80 * GIB + 17)]
        for now in (GPUS[:2], same, [GPUS[0], sick], [GPUS[0], sick], []):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gpus.set(list(now))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        listening.cancel()
        return told

    sick = msgspec.structs.replace(GPUS[1], sick="XID 79")
    with structlog.testing.capture_logs() as said:
        assert asyncio.run(lists()) == [["Healthy"], ["Healthy", "Unhealthy"], []]
    assert [(line["gpu"], line["health"]) for line in said] == [(B, "XID 79")]
