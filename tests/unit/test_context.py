"""The controls of one process on one GPU, and their undoing."""

from __future__ import annotations

import struct

import pytest

from runlist.model import MAX_TIMESLICE_US, Engine
from runlist.planes.interface import Prepared
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.controls import ROWS
from runlist.planes.nvidia.discover import Discoverer
from runlist.planes.nvidia.objects import GpuObjects, Group
from runlist.planes.nvidia.rm.client import RawControl, RmClient
from runlist.planes.nvidia.rm.commands import COMMANDS
from runlist.planes.nvidia.rm.status import InsufficientPermissions, InvalidClient
from runlist.planes.nvidia.undo import Replayer
from runlist.protocol.rm_autogen import Privilege
from tests.fixtures.fake_rm import COMPUTE, UUIDS, FakeClient, FakeFile, FakeRm, Node

SET, DISABLE, INTERLEAVE, REALTIME, MODE, POLICY, PREEMPT = (
    COMMANDS[name].number
    for name in (
        "SET_TIMESLICE", "FIFO_DISABLE_CHANNELS", "SET_INTERLEAVE_LEVEL", "MAKE_REALTIME", "SET_CTXSW_PREEMPTION_MODE",
        "FIFO_RUNLIST_SET_SCHED_POLICY", "PREEMPT",
    )
)  # fmt: skip


OTHER_THAN_DEFAULT = {
    "interleave": "high", "realtime": "on", "preemption": "cta", "scheduling-policy": "interleaved",
}  # fmt: skip


class Tenant:
    """A process in memory and its one GpuContext."""

    def __init__(self, *, contexts: int = 1, extra_channels: int = 0, privileged: bool = True) -> None:
        self.rm = rm = FakeRm(privileged=privileged)
        self.file: FakeFile = rm.tenant(1)
        self.client: FakeClient = self.file.client()
        device = self.client.device()
        for _ in range(contexts):
            self.client.context(device)
        if extra_channels:
            self.client.group(device, extra_channels, (COMPUTE,))
        (found,) = Discoverer(rm).discover(1, -1, rm)
        self.context = GpuContext(RmClient(self.file, found.client), found.gpus[0])
        self.file.calls.clear()

    def slices(self) -> list[int]:
        return [self.client.objects[group].slice_us for group in self.client.of_class(0xA06C)]

    def enabled(self) -> set[bool]:
        return {self.client.objects[channel].enabled for channel in self.client.of_class(0xC86F)}

    def replay(self, controls: list[RawControl]) -> list[int]:
        client = RmClient(self.file, self.client.handle)
        return [client.send(control)[0] for control in controls]


@pytest.fixture
def tenant() -> Tenant:
    return Tenant()


def test_the_slices_found_are_remembered(tenant: Tenant) -> None:
    assert list(tenant.context.original_us.values()) == [2048, 1024, 1024, 1024]
    assert tenant.context.timeslices(Engine.COPY).keys() == set(list(tenant.context.groups)[1:])


def test_a_slice_is_set_on_every_group_and_taken_back(tenant: Tenant) -> None:
    tenant.context.set_timeslice(1)
    assert tenant.slices() == [1] * 4
    tenant.context.set_timeslice(None)
    assert tenant.slices() == [2048, 1024, 1024, 1024]


@pytest.mark.parametrize("wrong", [0, -1, MAX_TIMESLICE_US + 1])
def test_a_slice_out_of_range_is_refused_before_anything_is_sent(tenant: Tenant, wrong: int) -> None:
    with pytest.raises(ValueError, match="1 to 60000000"):
        tenant.context.set_timeslice(wrong)
    assert not tenant.file.calls


@pytest.mark.parametrize("right", [1, MAX_TIMESLICE_US])
def test_the_shortest_and_the_longest_slice_are_set(tenant: Tenant, right: int) -> None:
    tenant.context.set_timeslice(right)
    assert right in tenant.slices()


def test_a_tenants_own_change_is_noticed_on_compute_groups(tenant: Tenant) -> None:
    tenant.context.set_timeslice(1)
    assert not tenant.context.wrong_timeslices(1)
    assert tenant.context.wrong_timeslices(None)
    tenant.client.objects[tenant.client.of_class(0xA06C)[0]].slice_us = 1_000_000
    assert tenant.context.wrong_timeslices(1)


def test_suspend_and_resume_reach_every_channel_in_one_control(tenant: Tenant) -> None:
    tenant.context.suspend()
    assert tenant.enabled() == {False}
    tenant.context.resume()
    assert tenant.enabled() == {True}
    calls = tenant.file.sent(DISABLE)
    assert [struct.unpack_from("<B3xI", call.params) for call in calls] == [(1, 20), (0, 20)]
    clients = struct.unpack_from("<64I", calls[0].params, 24)
    assert clients == (tenant.client.handle,) * 20 + (0,) * 44


@pytest.mark.parametrize(("extra", "counts"), [(43, [63]), (44, [64]), (45, [64, 1]), (140, [64, 64, 32])])
def test_more_channels_than_one_control_takes(extra: int, counts: list[int]) -> None:
    tenant = Tenant(extra_channels=extra)
    tenant.context.suspend()
    assert tenant.enabled() == {False}
    assert [struct.unpack_from("<I", call.params, 4)[0] for call in tenant.file.sent(DISABLE)] == [
        20 + extra if extra < 44 else count for count in counts
    ]
    tenant.replay(tenant.context.undo_controls())
    assert tenant.enabled() == {True}


def test_several_go_off_at_once_by_one_control_and_go_on_copying() -> None:
    rm = FakeRm()
    clients, contexts = [], []
    for pid in (1, 2, 3):
        file = rm.tenant(pid)
        client = file.client()
        client.context(client.device())
        (found,) = Discoverer(rm).discover(pid, -1, rm)
        clients.append(client)
        contexts.append(GpuContext(RmClient(file, found.client), found.gpus[0]))
    contexts[0].suspend_at_once(contexts[1:])
    for client in clients:
        compute, *copies = client.of_class(0xA06C)
        enabled = {client.objects[each].parent: client.objects[each].enabled for each in client.of_class(0xC86F)}
        assert [enabled[group] for group in (compute, *copies)] == [False, True, True, True]
    assert [len(rm.tenant(pid).sent(DISABLE)) for pid in (1, 2, 3)] == [1, 0, 0]
    contexts[1].resume()
    assert clients[1].objects[clients[1].of_class(0xC86F)[0]].enabled
    assert not clients[2].objects[clients[2].of_class(0xC86F)[0]].enabled


def test_the_driver_is_only_told_about_compute_groups_where_that_is_meant(tenant: Tenant) -> None:
    compute = next(iter(tenant.context.groups))
    tenant.context.preempt()
    tenant.context.set_control("realtime", "on")
    calls = tenant.file.sent(PREEMPT, REALTIME)
    assert [call.object for call in calls] == [compute, compute]
    assert calls[0].params[0] == 1  # waits: without, repeated preempts are undefined


def test_two_contexts_are_one() -> None:
    tenant = Tenant(contexts=2)
    tenant.context.set_timeslice(5)
    tenant.context.suspend()
    assert tenant.slices() == [5] * 8
    assert tenant.enabled() == {False}


# -- undo ------------------------------------------------------------------------------------------


def test_undo_sets_every_slice_back_before_it_enables_any_channel(tenant: Tenant) -> None:
    undo = tenant.context.undo_controls()
    assert [control.command for control in undo] == [SET] * 4 + [DISABLE] * 4
    assert [struct.unpack("<Q", control.params)[0] for control in undo[:4]] == [2048, 1024, 1024, 1024]
    assert all(control.params[0] == 0 for control in undo[4:])
    assert [struct.unpack_from("<I", control.params, 4)[0] for control in undo[4:]] == [8, 4, 4, 4]


def test_undo_puts_everything_back_and_may_be_replayed(tenant: Tenant) -> None:
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    for _ in range(2):
        assert set(tenant.replay(tenant.context.undo_controls())) == {0}
        assert tenant.slices() == [2048, 1024, 1024, 1024]
        assert tenant.enabled() == {True}


def test_undo_sends_nothing_by_itself(tenant: Tenant) -> None:
    tenant.context.undo_controls()
    assert not tenant.file.calls


def test_undo_covers_only_what_was_touched(tenant: Tenant) -> None:
    plain = {control.command for control in tenant.context.undo_controls()}
    assert plain == {SET, DISABLE}
    assert set(OTHER_THAN_DEFAULT) == set(ROWS)
    for name, word in OTHER_THAN_DEFAULT.items():
        tenant.context.set_control(name, word)
    undo = tenant.context.undo_controls()
    kinds = list(dict.fromkeys(control.command for control in undo))
    assert kinds == [SET, INTERLEAVE, REALTIME, MODE, POLICY, DISABLE]
    by_kind = {kind: [control for control in undo if control.command == kind] for kind in kinds}
    assert [control.params.hex() for control in by_kind[INTERLEAVE]] == ["00000000"] * 4
    assert [control.params.hex() for control in by_kind[REALTIME]] == ["00"]
    assert len(by_kind[MODE]) == 8
    assert {struct.unpack_from("<I", control.params, 12)[0] for control in by_kind[MODE]} == {2}  # CILP
    assert [control.params.hex() for control in by_kind[POLICY]] == ["0100000000000000"]
    assert set(tenant.replay(undo)) == {0}


def test_will_touch_says_whether_the_keeper_has_to_be_told(tenant: Tenant) -> None:
    assert tenant.context.will_touch("interleave")
    assert not tenant.context.will_touch("interleave")
    assert tenant.context.will_touch("preemption")
    tenant.context.set_control("realtime", "on")  # nobody was told before, but it is undone
    assert REALTIME in {control.command for control in tenant.context.undo_controls()}


def test_undo_is_a_copy_of_the_moment_it_was_found(tenant: Tenant) -> None:
    before = tenant.context.undo_controls()
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    assert tenant.context.undo_controls() == before


@pytest.mark.parametrize("name", ROWS)
def test_a_control_is_one_row(name: str) -> None:
    """Each of its words can be set, none but the default leaves a trace, and RM says who may."""
    row, tenant = ROWS[name], Tenant()
    assert (row.name, row.default in row.words) == (name, True)
    assert row.privileged == (COMMANDS[row.command].privilege is not Privilege.NONE)
    sent = {}
    for word in (*row.words, None):
        tenant.file.calls.clear()
        tenant.context.set_control(name, word)
        sent[word] = [(call.object, call.command, call.params) for call in tenant.file.calls]
    assert sent[None] == sent[row.default]
    assert len({str(controls) for word, controls in sent.items() if word}) == len(row.words)
    undo = [(control.object, control.command, control.params) for control in tenant.context.undo_controls()]
    assert [control for control in undo if control[1] == COMMANDS[row.command].number] == sent[row.default]


# -- things that vanish ----------------------------------------------------------------------------


def test_a_freed_group_is_dropped_and_the_others_are_served(tenant: Tenant) -> None:
    first = next(iter(tenant.context.groups))
    tenant.client.free(first)
    tenant.context.set_timeslice(1)
    assert tenant.slices() == [1] * 3
    assert first not in tenant.context.groups
    tenant.context.suspend()
    assert tenant.enabled() == {False}


def test_nothing_is_sent_to_a_client_that_is_gone(tenant: Tenant) -> None:
    """Another may have its handle, and its channels' handles, by then."""
    tenant.context.suspend()
    tenant.context.resume()
    tenant.file.calls.clear()
    tenant.context.forget_groups()
    tenant.context.suspend()
    tenant.context.resume()
    assert tenant.file.calls == []


def test_what_an_actuator_is_to_send_names_no_group_that_is_gone(tenant: Tenant) -> None:
    """Its handle may be another object's by then."""
    before = tenant.context.prepared_suspend()
    assert tenant.context.prepared_suspend() is before
    tenant.client.free(next(iter(tenant.context.groups)))
    tenant.context.set_timeslice(1)
    after = tenant.context.prepared_suspend()
    (found,) = Discoverer(tenant.rm).discover(1, -1, tenant.rm)
    assert after == GpuContext(RmClient(tenant.file, found.client), found.gpus[0]).prepared_suspend() != before
    tenant.context.forget_groups()
    assert tenant.context.prepared_suspend() == Prepared((), ())


def test_a_group_freed_before_a_control_is_set_is_dropped(tenant: Tenant) -> None:
    first, *others = tenant.context.groups
    tenant.client.free(first)
    tenant.context.set_control("interleave", "high")
    assert list(tenant.context.groups) == others
    assert [call.params.hex() for call in tenant.file.sent(INTERLEAVE)] == ["02000000"] * 4  # the first finds nothing


def test_suspending_when_a_group_was_freed_tries_again_without_it(tenant: Tenant) -> None:
    tenant.client.free(list(tenant.context.groups)[2])
    tenant.context.suspend()
    assert tenant.enabled() == {False}
    assert len(tenant.context.groups) == 3
    assert [call.status for call in tenant.file.sent(DISABLE)] == [0x21, 0]


@pytest.mark.parametrize("dying", [1, 20])
def test_channels_that_are_just_being_freed_do_not_keep_the_others_running(tenant: Tenant, dying: int) -> None:
    """Their handles are there until the driver has ended: seen on an H200, where it refused the list twice."""
    channels = tenant.client.of_class(0xC86F)
    for channel in channels[:dying]:
        tenant.client.objects[channel].is_being_freed = True
    tenant.context.suspend()
    assert {tenant.client.objects[channel].enabled for channel in channels[dying:]} <= {False}
    tenant.context.resume()
    assert tenant.enabled() == {True}


def test_undo_after_a_group_was_freed_still_resumes_the_others(tenant: Tenant) -> None:
    """The keeper's list is older than the freeing: it is sent group by group."""
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    undo = tenant.context.undo_controls()
    tenant.client.free(next(iter(tenant.context.groups)))
    assert sorted(set(tenant.replay(undo))) == [0, 0x21, 0x57]
    assert tenant.enabled() == {True}
    assert tenant.slices() == [1024] * 3


def test_undo_after_a_channel_was_freed_still_resumes_the_others_of_its_group(tenant: Tenant) -> None:
    """The keeper's list is older, and so may the context's be."""
    tenant.context.suspend()
    steps = tenant.context.undo()
    tenant.client.free(tenant.client.of_class(0xC86F)[0])
    for step in steps:
        Replayer(tenant.file).replay(step)
    assert tenant.enabled() == {True}
    for channel in tenant.client.of_class(0xC86F):
        tenant.client.objects[channel].enabled = False
    assert tenant.context.put_back() == []
    assert tenant.enabled() == {True}


def test_all_groups_freed_is_no_error(tenant: Tenant) -> None:
    for group in list(tenant.context.groups):
        tenant.client.free(group)
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    tenant.context.resume()
    assert tenant.context.undo_controls() == []
    assert not tenant.context.wrong_timeslices(1)


def test_a_freed_client_is_told(tenant: Tenant) -> None:
    tenant.file.clients.clear()
    for action in (tenant.context.suspend, tenant.context.timeslices, lambda: tenant.context.set_timeslice(1)):
        with pytest.raises(InvalidClient):
            action()


def test_a_refused_privileged_setting_is_no_permission() -> None:
    tenant = Tenant(privileged=False)
    with pytest.raises(InsufficientPermissions, match="root or CAP_SYS_NICE"):
        tenant.context.set_control("interleave", "high")
    with pytest.raises(InsufficientPermissions):
        tenant.context.set_control("scheduling-policy", None)


def test_putting_back_after_a_refused_setting_has_nothing_to_complain_of() -> None:
    """Its undo is refused as the setting was: nothing was changed, and the rest is put back."""
    tenant = Tenant(privileged=False)
    with pytest.raises(InsufficientPermissions):
        tenant.context.set_control("interleave", "high")
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    assert tenant.context.put_back() == []
    assert tenant.slices() == [2048, 1024, 1024, 1024]
    assert tenant.enabled() == {True}


def test_putting_back_tells_what_it_could_not_do_and_does_the_rest() -> None:
    tenant = Tenant()
    tenant.context.set_timeslice(1)
    tenant.context.suspend()
    first = next(iter(tenant.context.groups))
    tenant.file.on_control = lambda call: 0x65 if (call.object, call.command) == (first, SET) else None
    (trouble,) = tenant.context.put_back()
    assert "NV_ERR_TIMEOUT" in trouble
    assert tenant.slices() == [1, 1024, 1024, 1024]
    assert tenant.enabled() == {True}


def test_without_groups_there_is_no_slice_to_name(tenant: Tenant) -> None:
    bare = GpuContext(tenant.context.rm, GpuObjects(UUIDS[0], 0, ()))
    assert (bare.found_us, bare.channels, bare.competing, bare.group_ids) == (0, 0, 0, [])
    assert tenant.context.found_us == 2048
    assert (tenant.context.channels, tenant.context.competing) == (20, 1)


@pytest.mark.parametrize(("name", "sent"), [("interleave", 4), ("realtime", 1), ("preemption", 8)])
def test_controls_of_compute_work_are_sent_for_its_groups_alone(tenant: Tenant, name: str, sent: int) -> None:
    """For each of them, or for each of their channels."""
    tenant.context.set_control(name, OTHER_THAN_DEFAULT[name])
    assert len(tenant.file.sent(INTERLEAVE, REALTIME, MODE)) == sent


def test_at_once_its_compute_groups_go_off_and_what_it_copies_goes_on() -> None:
    """Each channel takes the driver time, for which somebody's request waits."""
    tenant = Tenant()
    sent: list[RawControl] = []
    tenant.context.rm.prepared = lambda control: sent.append(control) or b""  # type: ignore[method-assign, func-returns-value]
    tenant.context.prepared_suspend()
    off, *on = sent
    tenant.replay([off])
    compute, *others = tenant.client.of_class(0xA06C)
    enabled = {
        group: {
            tenant.client.objects[channel].enabled
            for channel in tenant.client.of_class(0xC86F)
            if tenant.client.objects[channel].parent == group
        }
        for group in (compute, *others)
    }
    assert enabled == {compute: {False}, **{group: {True} for group in others}}
    tenant.replay(on)
    assert tenant.enabled() == {True}


def test_at_once_one_without_a_compute_group_goes_off_whole() -> None:
    tenant = Tenant()
    for group in list(tenant.context.groups.values()):
        tenant.context.groups[group.handle] = Group(group.handle, Engine.COPY, group.channels)
    sent: list[RawControl] = []
    tenant.context.rm.prepared = lambda control: sent.append(control) or b""  # type: ignore[method-assign, func-returns-value]
    tenant.context.prepared_suspend()
    tenant.replay(sent[:1])
    assert tenant.enabled() == {False}


def test_channels_that_a_group_gets_later_are_suspended_with_the_others() -> None:
    tenant = Tenant()
    group = tenant.client.of_class(0xA06C)[0]
    known = tenant.context.groups[group]
    tenant.context.prepared_suspend()
    late = tenant.client.add(0xC86F, group)
    assert tenant.context.grow(Group(group, known.engine, (*known.channels, late)))
    assert not tenant.context.grow(Group(group, known.engine, (*known.channels, late)))
    assert not tenant.context.grow(Group(0x1234, known.engine, (late,)))
    tenant.context.suspend()
    assert tenant.enabled() == {False}
    tenant.context.resume()
    assert tenant.enabled() == {True}


def test_a_group_whose_engine_shows_later_counts_as_what_it_is() -> None:
    tenant = Tenant()
    group, *_ = tenant.context.groups.values()
    ids = tenant.context.group_ids
    assert len(ids) == 1
    tenant.context.groups[group.handle] = Group(group.handle, Engine.OTHER, group.channels)
    tenant.context._ids.clear()
    assert (tenant.context.competing, tenant.context.group_ids) == (0, [])
    assert tenant.context.grow(group)
    assert (tenant.context.competing, tenant.context.group_ids) == (1, ids)
    assert not tenant.context.grow(Group(group.handle, Engine.COPY, group.channels))


def test_a_channel_that_was_freed_keeps_no_other_from_it(tenant: Tenant) -> None:
    """Of a group that lives: the driver refuses the whole list."""
    freed = tenant.client.of_class(0xC86F)[3]
    tenant.client.free(freed)
    tenant.context.suspend()
    assert (tenant.enabled(), tenant.context.channels) == ({False}, 19)
    tenant.context.resume()
    assert tenant.enabled() == {True}


def test_a_handle_that_is_another_object_now_is_no_channel(tenant: Tenant) -> None:
    taken = tenant.client.of_class(0xC86F)[3]
    tenant.client.free(taken)
    tenant.client.objects[taken] = Node(0x40, tenant.client.handle)
    tenant.context.suspend()
    assert (tenant.enabled(), tenant.context.channels) == ({False}, 19)


def test_a_group_without_channels_is_dropped(tenant: Tenant) -> None:
    group = tenant.client.of_class(0xA06C)[1]
    for channel in tenant.client.of_class(0xC86F, group):
        tenant.client.free(channel)
    tenant.context.suspend()
    assert group not in tenant.context.groups
    assert tenant.enabled() == {False}


def test_rousing_sets_the_slices_and_enables_group_by_group(tenant: Tenant) -> None:
    tenant.context.set_timeslice(1)
    for channel in tenant.client.of_class(0xC86F):
        tenant.client.objects[channel].enabled = False
    tenant.file.calls.clear()
    tenant.context.rouse()
    assert (tenant.enabled(), tenant.slices()) == ({True}, [1] * 4)
    assert [struct.unpack_from("<B3xI", call.params) for call in tenant.file.sent(DISABLE)] == [
        (0, len(group.channels)) for group in tenant.context.groups.values()
    ]
    assert len(tenant.file.sent(SET)) == 4


def test_rousing_one_that_frees_something_meanwhile(tenant: Tenant) -> None:
    tenant.client.free(tenant.client.of_class(0xC86F)[0])
    tenant.client.free(tenant.client.of_class(0xA06C)[2])
    tenant.context.suspend()
    tenant.context.rouse()
    assert tenant.enabled() == {True}
