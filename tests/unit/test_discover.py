"""Discovery over a resource manager in memory whose objects have the shape of a real H200 process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from runlist.errors import NoPermissionError
from runlist.model import Engine
from runlist.planes.interface import Lent, Seen
from runlist.planes.nvidia.discover import Discoverer, Found
from runlist.planes.nvidia.rm.status import RmError
from tests.fixtures.fake_rm import CLIENT_COUNT, COMPUTE, COPY, FILLER, UUIDS, FakeRm

# As they are to be: taken from the code they would hold whatever it says.
NEW_REACH = 4096

PID = 4242


@pytest.fixture
def rm() -> FakeRm:
    return FakeRm()


def discover(rm: FakeRm, pid: int = PID) -> list[Found]:
    discoverer = Discoverer(rm)
    try:
        return discoverer.discover(pid, -1, rm)
    finally:
        discoverer.close()


def shape(found: list[Found]) -> list[list[tuple[Engine, int]]]:
    return [[(group.engine, len(group.channels)) for group in gpu.groups] for client in found for gpu in client.gpus]


CONTEXT = [(Engine.COMPUTE, 8), (Engine.COPY, 4), (Engine.COPY, 4), (Engine.COPY, 4)]


def test_a_cuda_process(rm: FakeRm) -> None:
    client = rm.tenant(PID, fd=8).client()
    device = client.device()
    groups = client.context(device)
    (found,) = discover(rm)
    assert (found.fd, found.handle, found.client) == (8, rm.tenant(PID), client.handle)
    (gpu,) = found.gpus
    assert gpu.gpu == UUIDS[0]
    assert gpu.subdevice == client.of_class(0x2080)[0]
    assert [group.handle for group in gpu.groups] == groups
    assert shape([found]) == [CONTEXT]
    assert [list(group.channels) for group in gpu.groups] == [client.of_class(0xC86F, group) for group in groups]


def test_nothing_is_changed_in_the_process(rm: FakeRm) -> None:
    file = rm.tenant(PID)
    client = file.client()
    client.context(client.device())
    discover(rm)
    assert {call.command for call in file.calls} <= {0xD02, 0xD05, 0x2080014A}


def test_our_own_client_is_freed_again(rm: FakeRm) -> None:
    own = rm.file()
    rm.open = lambda: own  # type: ignore[method-assign]
    client = rm.tenant(PID).client()
    client.context(client.device())
    discover(rm)
    assert not own.clients
    assert own.closed == 1


def test_two_contexts(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    client.context(device)
    client.next += 10  # freed meanwhile
    client.context(device)
    assert shape(discover(rm)) == [CONTEXT + CONTEXT]


def test_two_gpus(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    first, second = client.device(UUIDS[0]), client.device(UUIDS[1])
    client.context(second)
    client.context(first)
    (found,) = discover(rm)
    assert {gpu.gpu for gpu in found.gpus} == set(UUIDS)
    assert shape([found]) == [CONTEXT, CONTEXT]
    for gpu in found.gpus:
        device = client.objects[gpu.subdevice].parent
        assert all(client.objects[group.handle].parent == device for group in gpu.groups)


def test_two_clients_on_one_file_and_two_files(rm: FakeRm) -> None:
    for fd in (8, 30):
        for _ in range(2):
            client = rm.tenant(PID, fd).client()
            client.context(client.device())
    found = discover(rm)
    assert sorted(client.fd for client in found) == [8, 8, 30, 30]
    assert len({client.client for client in found}) == 4
    assert shape(found) == [CONTEXT] * 4


@pytest.mark.parametrize("base", [0x5C000000, 0x10000, 0xABCD0000, 0xABCD9000, 0x5C00FFF0, 0xFFFF0000])
def test_handles_in_another_range(rm: FakeRm, base: int) -> None:
    client = rm.tenant(PID).client(base=base)
    client.context(client.device())
    assert shape(discover(rm)) == [CONTEXT]


def test_groups_in_another_range_than_the_device(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    client.next = 0x6D004567
    client.context(device)
    assert shape(discover(rm)) == [CONTEXT]


def test_handles_at_the_very_end_of_the_range(rm: FakeRm) -> None:
    """A process chooses its own handles: the highest there are must not trip the search."""
    client = rm.tenant(PID).client(base=0xFFFFFF00)
    client.context(client.device())
    assert shape(discover(rm)) == [CONTEXT]


def test_a_gap_of_freed_handles(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    client.context(device)
    client.next += 400
    client.context(device)
    assert shape(discover(rm)) == [CONTEXT + CONTEXT]


def test_a_client_far_down(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    client.context(client.device())
    rm.newest += 20_000
    assert shape(discover(rm)) == [CONTEXT]


def test_a_client_before_the_handles_wrapped_around() -> None:
    rm = FakeRm(newest=CLIENT_COUNT - 10)
    client = rm.tenant(PID).client()
    client.context(client.device())
    rm.newest = 5
    (found,) = discover(rm)
    assert found.client == 0xC1D00000 + CLIENT_COUNT - 9


def test_a_client_without_groups_is_no_work(rm: FakeRm) -> None:
    file = rm.tenant(PID)
    client = file.client()
    client.device()
    assert discover(rm) == []
    assert file.closed == 1


def test_a_client_without_a_device(rm: FakeRm) -> None:
    rm.tenant(PID).client()
    assert discover(rm) == []


def test_a_group_whose_channels_have_no_engine(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    client.group(device, 3, ())
    client.group(device, 2, (COPY, COMPUTE))
    assert shape(discover(rm)) == [[(Engine.OTHER, 3), (Engine.COMPUTE, 2)]]


def test_a_group_without_channels_is_left_out(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    client.group(device, 0, ())
    client.context(device)
    assert shape(discover(rm)) == [CONTEXT]


def test_one_compute_channel_makes_a_compute_group(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    group = client.group(device, 3, (COPY,))
    client.add(COMPUTE, client.of_class(0xC86F, group)[2])
    assert shape(discover(rm)) == [[(Engine.COMPUTE, 3)]]


def test_fillers_of_other_classes_do_not_matter(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    device = client.device()
    for class_ in (0x2081, 0xC661, 0x90E6, 0xDE, 0x50A0, 0x503C, 0x71, 0x79, 0x83DE, FILLER):
        client.add(class_, device)
    client.context(device)
    assert shape(discover(rm)) == [CONTEXT]


def test_a_process_that_is_gone_has_nothing(rm: FakeRm) -> None:
    assert discover(rm, 99) == []


def test_no_right_is_told_with_what_to_do(rm: FakeRm) -> None:
    rm.tenant(PID).client()
    rm.refuse = PermissionError(1, "Operation not permitted")
    with pytest.raises(NoPermissionError, match=r"process 4242 .*runlist run"):
        discover(rm)


def test_a_descriptor_closed_meanwhile_is_passed_over(rm: FakeRm) -> None:
    rm.tenant(PID).client()
    rm.refuse = OSError(9, "Bad file descriptor")
    assert discover(rm) == []


def test_a_descriptor_that_is_no_control_file_is_passed_over(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    client.context(client.device())
    rm.adopt = lambda fd: None  # type: ignore[method-assign]
    assert discover(rm) == []


def test_an_unexpected_status_is_raised_and_every_copy_closed(rm: FakeRm) -> None:
    """A copy that stays open keeps the memory of a process alive after it died."""
    for fd in (8, 9):
        client = rm.tenant(PID, fd).client()
        client.context(client.device())
    rm.tenant(PID, 9).on_control = lambda call: 0x65
    with pytest.raises(RmError, match="NV_ERR_TIMEOUT"):
        discover(rm)
    assert [file.closed for file in rm.processes[PID].values()] == [1, 1]


@pytest.mark.parametrize("status", [0x23, 0x33, 0x57])
def test_clients_that_are_just_being_freed_are_passed_over(rm: FakeRm, status: int) -> None:
    """RM gives out client handles to all processes, and answers so about one that goes while it is asked."""
    client = rm.tenant(PID, 8).client()
    client.context(client.device())
    rm.without_client = status
    (found,) = discover(rm)
    assert found.client == client.handle


def _broken(call: object) -> int:
    raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("broken", [7, 9])
def test_a_file_that_answers_nothing_hides_none_of_the_others(rm: FakeRm, broken: int) -> None:
    """Whoever shuts one down would not be managed."""
    client = rm.tenant(PID, 8).client()
    client.context(client.device())
    rm.tenant(PID, broken).client()
    rm.tenant(PID, broken).on_control = _broken
    (found,) = discover(rm)
    assert (found.fd, shape([found])) == (8, [CONTEXT])
    assert {fd: file.closed for fd, file in rm.processes[PID].items()} == {8: 0, broken: 1}
    discoverer = Discoverer(rm)
    lent = [Lent(fd, rm.tenant(PID, fd), next(iter(rm.tenant(PID, fd).clients))) for fd in sorted((8, broken))]
    rm.tenant(PID, broken).closed = 0
    assert [each.fd for each in discoverer.examine(lent)] == [8]
    rm.tenant(PID, broken).closed = 0
    what = [Seen(fd, next(iter(rm.tenant(PID, fd).clients)), tuple(client.objects)) for fd in (broken, 8)]
    assert [each.fd for each in discoverer.find_seen(PID, -1, rm, what)] == [8]
    discoverer.close()


def test_a_driver_that_answers_nothing_is_told(rm: FakeRm) -> None:
    rm.tenant(PID, 8).client()
    discoverer = Discoverer(rm)
    discoverer._own_file.call = lambda *_: _broken(None)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(BrokenPipeError):
        discoverer.discover(PID, -1, rm)
    discoverer.close()


def test_losing_the_right_half_way_closes_every_copy(rm: FakeRm) -> None:
    for fd in (8, 9):
        client = rm.tenant(PID, fd).client()
        client.context(client.device())
    borrow = rm.borrow

    def once(pid: int, pidfd: int, fd: int) -> int:
        if fd == 9:
            raise PermissionError(1, os.strerror(1))
        return borrow(pid, pidfd, fd)

    rm.borrow = once  # type: ignore[method-assign]
    with pytest.raises(NoPermissionError):
        discover(rm)
    assert rm.tenant(PID, 8).closed == 1


def test_the_process_may_end_while_its_descriptors_are_listed(rm: FakeRm) -> None:
    def listing(pid: int) -> Iterator[int]:
        yield from ()
        raise ProcessLookupError(3, "No such process")

    rm.control_files = listing  # type: ignore[method-assign]
    assert discover(rm) == []


# -- how far it looks ------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "further", "finds"), [(True, -20, True), (True, 20, False), (False, 20, True)])
def test_a_new_process_is_looked_for_among_the_newest_clients_alone(
    rm: FakeRm, new: bool, further: int, finds: bool
) -> None:
    client = rm.tenant(PID).client()
    client.context(client.device())
    rm.newest += NEW_REACH + further
    discoverer = Discoverer(rm)
    assert shape(discoverer.find(PID, -1, rm, new=new)) == [CONTEXT] * finds
    discoverer.close()


@pytest.mark.parametrize(("reach", "finds"), [(10, False), (11, True)])
def test_the_reach_is_counted_from_the_newest_client(rm: FakeRm, reach: int, finds: bool) -> None:
    client = rm.tenant(PID).client()
    client.context(client.device())
    rm.newest += 9  # the tenth further down is our own that asks
    discoverer = Discoverer(rm)
    assert bool(discoverer.discover(PID, -1, rm, reach)) is finds
    discoverer.close()


def test_clients_of_a_process_lie_close_together(rm: FakeRm) -> None:
    """So the search ends a little below the last one that was found."""
    file = rm.tenant(PID)
    for gap in (200, 60, 30):  # from the oldest
        client = file.client()
        client.context(client.device())
        rm.newest += gap
    assert len(discover(rm)) == 2


def test_a_process_of_many_files_is_looked_at_in_pieces(rm: FakeRm) -> None:
    for fd in (8, 30, 9):
        client = rm.tenant(PID, fd).client()
        client.context(client.device())
    discoverer = Discoverer(rm)
    assert not discoverer.is_unfinished(PID)
    looks = []
    for _ in range(3):
        looks.append([found.fd for found in discoverer.discover(PID, -1, rm, seconds=0.0)])
        assert discoverer.is_unfinished(PID)
    assert discoverer.discover(PID, -1, rm, seconds=0.0) == []  # there is no further one
    assert not discoverer.is_unfinished(PID)
    assert looks == [[8], [9], [30]]
    assert [found.fd for found in discoverer.discover(PID, -1, rm)] == [8, 9, 30]
    assert not discoverer.is_unfinished(PID)
    discoverer.close()


def test_which_processes_may_have_work(rm: FakeRm) -> None:
    rm.tenant(PID)
    rm.processes[PID + 1] = {}
    discoverer = Discoverer(rm)
    assert [discoverer.may_have_work(pid) for pid in (PID, PID + 1, PID + 2)] == [True, False, False]
    discoverer.close()


def test_contexts_are_of_the_groups_that_are_not_known_yet(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    first, *others = client.context(client.device())
    (found,) = discover(rm)
    (context,) = found.contexts(found.handle, [])
    assert list(context.groups) == [first, *others]
    (context,) = found.contexts(found.handle, {(client.handle, others[0]), (client.handle + 1, first)})
    assert list(context.groups) == [first, *others[1:]]
    assert found.contexts(found.handle, {(client.handle, group) for group in (first, *others)}) == []


# -- files that were sent --------------------------------------------------------------------------


def test_of_files_that_were_sent_those_without_work_are_closed(rm: FakeRm) -> None:
    work, idle = rm.tenant(PID, 8), rm.tenant(PID, 9)
    client = work.client()
    client.context(client.device())
    lent = [Lent(8, work, client.handle), Lent(9, idle, idle.client().handle)]
    discoverer = Discoverer(rm)
    (found,) = discoverer.examine(lent)
    assert (found.fd, found.handle, found.client, shape([found])) == (8, work, client.handle, [CONTEXT])
    assert (work.closed, idle.closed) == (0, 1)
    work.on_control = lambda call: 0x65
    with pytest.raises(RmError, match="NV_ERR_TIMEOUT"):
        discoverer.examine(lent[:1])
    assert work.closed == 1
    discoverer.close()


def seen(rm: FakeRm, *what: Seen, pid: int = PID) -> list[Found]:
    discoverer = Discoverer(rm)
    try:
        return discoverer.find_seen(pid, -1, rm, what)
    finally:
        discoverer.close()


def test_objects_that_the_kernel_saw_are_found_without_a_search(rm: FakeRm) -> None:
    client = rm.tenant(PID, fd=8).client()
    client.context(client.device())
    file = rm.tenant(PID)
    file.calls.clear()
    (found,) = seen(rm, Seen(8, client.handle, tuple(client.objects)))
    assert shape([found]) == [CONTEXT]
    assert len(file.calls) < 4 * len(client.objects)


@pytest.mark.parametrize("wrong", ["handles", "client", "file", "process"])
def test_what_was_seen_of_nobodys_objects_is_nothing(rm: FakeRm, wrong: str) -> None:
    """Of handles that the driver does not know, of another's client, of a file that is not the driver's."""
    client = rm.tenant(PID, fd=8).client()
    client.context(client.device())
    other = rm.tenant(PID + 1, fd=8).client()
    handles = (0x77, 0x78) if wrong == "handles" else tuple(client.objects)
    whose = other.handle if wrong == "client" else client.handle
    said = Seen(9 if wrong == "file" else 8, whose, handles)
    assert seen(rm, said, pid=PID + 1 if wrong == "process" else PID) == []
