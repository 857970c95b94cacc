"""What rules put into the kernel's policy map, in a kernel in memory: whole generations, in force at once."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from runlist.daemon.kernel.policy import PolicyMap
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Rules
from runlist.model import TaskClass
from runlist.planes.kernel import bpf
from runlist.planes.kernel.maps import MAPS, MOST_ENTRIES, STRUCTURES
from runlist.proc import cgroup
from runlist.protocol import kernel_autogen as protocol
from tests.fixtures.bpf_in_memory import Bpf


class World:
    """A rule book and the kernel's two maps."""

    def __init__(self) -> None:
        self.book = RuleBook(Rules.none())
        self.kernel = Bpf()
        self.cgroups: dict[str, int] = {}

    def rules(self, *rules: str, file: str = "a.toml") -> None:
        text = "".join(f"[[rule]]\n{rule}\n" for rule in rules)
        self.book.put(file, Rules.of_drop_in(Path("/") / file, text.encode()))

    def attached(self) -> PolicyMap:
        policy = PolicyMap(self.book)
        policy.attach(*(self._made(name) for name in ("policy", "force")))
        return policy

    def _made(self, name: str) -> bpf.Map:
        each = next(each for each in MAPS if each.name == name)
        return bpf.Map(bpf.make_map(name, each.kind, *each.sizes, each.entries), *each.sizes)

    @property
    def force(self) -> tuple[int, int]:
        """Which generation counts, and what is asked of who makes a request."""
        ((key, value),) = self.kernel.map("force").content.items()
        assert key == bytes(4)
        return struct.unpack("<II", value)  # type: ignore[return-value]

    @property
    def entries(self) -> list[tuple[dict[str, object], dict[str, object]]]:
        """Keys and values, in the order of rules. All are of the generation that counts."""
        found = [
            (dict(STRUCTURES["POLICY_KEY"].unpack(key)), dict(STRUCTURES["POLICY"].unpack(value)))
            for key, value in self.kernel.map("policy").content.items()
        ]
        assert {key.pop("generation") for key, _ in found} <= {self.force[0]}
        return sorted(found, key=lambda each: each[1]["order"])  # type: ignore[arg-type,return-value]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(bpf, "_libc", one.kernel)
    monkeypatch.setattr(cgroup, "unified", lambda: Path("/"))
    monkeypatch.setattr(cgroup, "number_of", lambda path, above: one.cgroups.get(path))
    return one


def test_an_entry_says_whom_it_names_what_they_get_and_what_is_refused(world: World) -> None:
    world.cgroups["/jobs"] = 4000000001
    world.rules(
        'user = 7\nset = { class = "batch", weight = 300, timeslice = "2ms" }',
        'cgroup = "/jobs"\nrefuse = { groups = 8, slices = true }',
        'comm = "train"\nuser = 8\nrefuse = { gpus = [0, 3] }',
    )
    policy = world.attached()
    assert world.entries == [
        (
            {"cgroup": 0, "user": 7, "which": protocol.BY_USER, "comm": bytes(16)},
            {
                "order": 0, "number": 1, "flags": protocol.PLACES_TASK, "weight": 300,
                "class_": list(TaskClass).index(TaskClass.BATCH), "slice_us": 2000, "most_groups": 0, "gpus": 0,
            },
        ),
        (
            {"cgroup": 4000000001, "user": 0, "which": protocol.BY_CGROUP, "comm": bytes(16)},
            {
                "order": 1, "number": 2, "class_": list(TaskClass).index(TaskClass.NORMAL), "weight": 100,
                "flags": protocol.PLACES_TASK | protocol.REFUSE_SLICES | protocol.REFUSE_GROUPS, "slice_us": 0,
                "most_groups": 8, "gpus": 0,
            },
        ),
        (
            {"cgroup": 0, "user": 8, "which": protocol.BY_USER | protocol.BY_COMM, "comm": b"train".ljust(16, b"\0")},
            {
                "order": 2, "number": 3, "class_": list(TaskClass).index(TaskClass.NORMAL), "weight": 100,
                "flags": world.entries[2][1]["flags"], "slice_us": 0, "most_groups": 0, "gpus": 0b1001,
            },
        ),
    ]  # fmt: skip
    assert int(world.entries[2][1]["flags"]) & ~protocol.PLACES_TASK == protocol.REFUSE_GPUS  # type: ignore[call-overload]
    which = 1 << protocol.BY_USER | 1 << protocol.BY_CGROUP | 1 << (protocol.BY_USER | protocol.BY_COMM)
    assert world.force == (1, which | protocol.FORCE_REFUSES)
    assert [policy.entry(number).order for number in (1, 2, 3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert policy.entry(4) is None


def test_a_weight_that_the_cgroup_says_is_no_weight_of_the_kernels(world: World) -> None:
    world.rules('user = 7\nset = { class = "batch", weight = "cgroup" }')
    world.attached()
    ((_, value),) = world.entries
    assert (value["weight"], value["class_"]) == (100, list(TaskClass).index(TaskClass.BATCH))
    assert not int(value["flags"]) & protocol.PLACES_TASK  # type: ignore[call-overload]


def test_an_entry_whose_cgroup_is_yet_to_come_is_not_in_the_map_and_asks_nothing_of_the_kernel(world: World) -> None:
    world.rules('cgroup = "/later"\nrefuse = { groups = 1 }', 'user = 7\nset = { class = "batch" }')
    policy = world.attached()
    assert [key["user"] for key, _ in world.entries] == [7]
    assert world.force == (1, 1 << protocol.BY_USER)
    world.cgroups["/later"] = 9
    policy.look()
    assert [(key["cgroup"], key["user"]) for key, _ in world.entries] == [(9, 0), (0, 7)]
    assert world.force == (2, 1 << protocol.BY_USER | 1 << protocol.BY_CGROUP | protocol.FORCE_REFUSES)
    del world.cgroups["/later"]
    policy.look()
    assert [key["user"] for key, _ in world.entries] == [7]
    assert world.force == (3, 1 << protocol.BY_USER)


def test_an_entry_that_stays_keeps_its_number_and_the_ring_may_tell_of_one_that_has_just_gone(world: World) -> None:
    world.rules('user = 7\nset = { class = "batch" }')
    world.rules("user = 8", file="b.toml")
    policy = world.attached()
    assert [value["number"] for _, value in world.entries] == [1, 2]
    world.rules("user = 9", file="b.toml")
    policy.update()
    assert [value["number"] for _, value in world.entries] == [1, 3]
    gone, here = policy.entry(2), policy.entry(3)
    assert gone is not None
    assert here is not None
    assert (gone.user, here.user) == (8, 9)
    world.rules('user = 7\nset = { class = "normal" }')  # the same whom, and another what
    policy.update()
    assert [value["number"] for _, value in world.entries] == [4, 3]
    assert policy.entry(2) is None
    generation = world.force
    policy.update()
    assert world.force == generation  # nothing changed, nothing is written


def test_where_the_map_cannot_be_written_it_is_as_it_was_and_that_is_tried_again(world: World) -> None:
    world.rules("user = 7", "user = 8")
    policy = world.attached()
    before, force = dict(world.kernel.map("policy").content), world.force
    world.kernel.map("policy").entries = 3
    world.rules("user = 9", "user = 10")
    policy.update()
    assert policy.trouble == f"the policy map cannot be written ({os.strerror(errno.E2BIG)}): it is as it was"
    assert (world.kernel.map("policy").content, world.force) == (before, force)
    assert [entry.user for entry in policy.entries] == [7, 8]
    world.kernel.map("policy").entries = 4
    policy.look()
    assert policy.trouble == ""
    assert [key["user"] for key, _ in world.entries] == [9, 10]


def test_as_many_entries_as_there_is_room_for(world: World) -> None:
    names = ", ".join(f'"c{number}"' for number in range(1000))
    users = ", ".join(str(number) for number in range(1, 5))
    rule = f"comm = [{names}]\nuser = [{users}]"
    extra = MOST_ENTRIES - 4000
    more = ", ".join(f'"d{number}"' for number in range(extra))
    world.rules(rule, f"comm = [{more}]")
    policy = world.attached()
    assert (len(policy.entries), policy.trouble) == (MOST_ENTRIES, "")
    assert len(world.kernel.map("policy").content) == MOST_ENTRIES
    world.rules(rule, f"comm = [{more}]", "user = 9")
    policy.update()
    said = f"{MOST_ENTRIES + 1} entries, and there is room for {MOST_ENTRIES}: name fewer; the map is as it was"
    assert (len(policy.entries), policy.trouble) == (MOST_ENTRIES, said)


def test_without_maps_the_entries_are_known_all_the_same_and_maps_that_come_have_them(world: World) -> None:
    world.rules("user = 7")
    policy = world.attached()
    policy.detach()
    world.rules("user = 8")
    policy.update()
    assert [entry.user for entry in policy.entries] == [8]
    assert [key["user"] for key, _ in world.entries] == [7]
    policy.attach(*(world._made(name) for name in ("policy", "force")))
    assert [key["user"] for key, _ in world.entries] == [8]


def test_the_number_for_a_process_is_that_of_the_first_entry_that_names_it(world: World) -> None:
    world.cgroups["/jobs"] = 5
    world.rules('cgroup = "/jobs"\nuser = 7', 'comm = "train"', "user = 7", 'cgroup = "/later"')
    policy = world.attached()
    numbers = {
        (5, 7, "train"): 1, (5, 8, "train"): 2, (6, 7, "other"): 3, (6, 7, "train"): 2, (6, 8, "other"): 0,
        (5, 8, ""): 0,
    }  # fmt: skip
    assert {who: policy.number_for(*who) for who in numbers} == numbers


def test_what_an_entry_gives_needs_nothing_else_where_no_rule_before_it_can_match(world: World) -> None:
    world.cgroups["/jobs"] = 5
    world.rules('cgroup = "/jobs"\nset = { class = "batch" }', 'command = "python*"', "user = 7\nset = { weight = 50 }")
    first, last = world.attached().entries
    match = first.match()
    assert match is not None
    assert match.settings == {"class": "batch"}
    assert (last.sure, last.match()) == (False, None)


def test_who_an_entry_names_by_its_cgroup_alone_may_be_anybodys_process(world: World) -> None:
    world.cgroups["/jobs"] = 5
    world.rules('cgroup = "/jobs"\nset = { group = "user" }', "user = 7")
    first, second = world.attached().entries
    assert (first.sure, first.match()) == (
        False,
        None,
    )  # the group is named after its user, whom the entry does not say
    assert second.match() is None
    world.rules("user = 0\nset = { weight = 20 }")
    (entry,) = world.attached().entries
    match = entry.match()
    assert match is not None
    assert match.settings == {"weight": "20"}


def test_entries_behind_one_that_always_counts_are_not_in_the_map_and_are_looked_after(world: World) -> None:
    world.rules("user = 7", 'user = 7\ncgroup = "/jobs"', 'cgroup = "/jobs"')
    policy = world.attached()
    assert [entry.who for entry in policy.entries] == [(None, 7, None), ("/jobs", None, None)]
    assert [(entry.who, entry.behind) for entry in policy.unused] == [(("/jobs", 7, None), "a.toml:1")]
    force = world.force
    policy.look()
    assert world.force == force
    world.cgroups["/jobs"] = 5
    policy.look()
    assert [key["cgroup"] for key, _ in world.entries] == [0, 5]
    assert policy.unused[0].cgroup_id == 5


def test_without_cgroups_named_a_look_asks_for_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.rules("user = 7")
    policy = world.attached()
    monkeypatch.setattr(cgroup, "unified", lambda: pytest.fail("it is asked for"))
    policy.look()
    assert world.force[0] == 1
