"""The requests of a process: its calls of the driver, and which of them belong together.

A request is what the process does from its first call after a pause until the end of its last wait for the GPU. Threads
that launch on the same streams, and those that wait for what others launch, make requests together.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from runlist.protocol.why_autogen import What
from runlist.why.functions import KINDS, Kind, number_of
from runlist.why.seen import SLEEPS, VOLUNTARY, Events, Mode, Row, Seen
from runlist.why.threads import Thread
from runlist.why.under_way import SHARED, Call, Request, find_earlier_work

LEAST_PAUSE_NS, USUAL_PAUSE_NS, MOST_PAUSE_NS = 50_000, 1_000_000, 50_000_000
"""Of a pause that is learnt, and the one that is taken where nothing can be learnt."""
CLEAR = 4.0
"""How many times longer than the longest time between calls a pause must be to be told from it."""
_ENOUGH = 4
"""So many requests tell how many launches one has."""
_LAUNCHES, _WAITS = (Kind.WORK, Kind.MEMORY), (Kind.WAIT, Kind.MEMORY)
_LAUNCH = number_of("cuLaunchKernel")
_OVERLAPS = 2
"""So many tell that a thread serves several at once."""
_OF_CALLS = (int(What.CALL), int(What.RETURN))
_RETURN = int(What.RETURN)
_FUNCTIONS = len(KINDS)
_FUNCTION = 6
"""Where that is in a row."""


def calls(events: Events, end_ns: int) -> list[Call]:
    """The outermost calls of all threads, in order. An end that was lost is that of the next call that cannot be within
    it, or `end_ns`.
    """
    return sorted(call for tid in events.threads() for call in _counted(_calls(events.of_thread(tid), end_ns)))


def _counted(made: Iterable[Call]) -> Iterator[Call]:
    """The calls of a thread, each with the launches that were folded behind it: the thread's next call tells of those,
    on whatever stream that is.
    """
    waiting: list[Call] = []  # the last launch, and what came behind it
    for call in made:
        folded = call.folded
        if waiting and folded:
            waiting[0] = waiting[0]._replace(folded=waiting[0].folded + folded)
        if KINDS[call.function] is Kind.WORK:
            yield from waiting
            waiting.clear()
        waiting.append(call._replace(folded=0) if folded else call)
    yield from waiting


def _calls(rows: Iterable[Row], end_ns: int) -> Iterator[Call]:
    under_way: list[Row] = []
    for row in rows:
        time, what, _, _, _, value, function, _, _, _ = row
        if what not in _OF_CALLS or function >= _FUNCTIONS:
            continue
        if what == _RETURN:
            if not any(function == each[_FUNCTION] for each in under_way):
                continue  # its beginning was lost
            while under_way:
                begun = under_way.pop()
                if begun[_FUNCTION] == function:
                    break
            if not under_way:
                yield _call(begun, time, value & 0xFFFFFFFF)
            continue
        kind = KINDS[function]
        if under_way and (kind is Kind.WAIT or any(function == each[_FUNCTION] for each in under_way)):
            yield _call(under_way[0], time, 0)  # none of these calls itself, or waits within another
            under_way.clear()
        if kind is Kind.WORK:
            if not under_way:
                yield _call(row, time, 0)
            continue
        under_way.append(row)
    if under_way:
        yield _call(under_way[0], end_ns, 0)


def _call(row: Row, end_ns: int, result: int) -> Call:
    time, _, tid, _, _, argument, function, folded, _, _ = row
    return Call(time, end_ns, tid, function, argument, result, folded)


def unseen_launches(
    made: Sequence[Call], threads: Mapping[int, Thread], since_ns: int, pause_ns: int
) -> Iterator[Call]:
    """Launches that must have been, where they are not watched any more: one for each wait that has none. It is where
    the thread last awoke, or behind its call before; where it has run for longer than a pause since that, it may have
    paused without sleeping, and only the wait itself is known to belong to it.
    """
    before: dict[int, Call] = {}
    for call in made:
        last = before.get(call.tid)
        before[call.tid] = call
        if call.kind is not Kind.WAIT or call.start_ns < since_ns or (last is not None and last.kind is Kind.WORK):
            continue
        least = max(since_ns, last.end_ns if last is not None else since_ns)
        at, slept = call.start_ns, False
        thread = threads.get(call.tid)
        for span in reversed(list(thread.between(least, call.start_ns)) if thread is not None else ()):
            if slept := span.mode in SLEEPS:
                break
            at = span.start_ns
        if not slept and call.start_ns - at >= pause_ns:
            at = call.start_ns
        yield Call(at, at, call.tid, _LAUNCH, call.argument)


def requests(seen: Seen, made: Sequence[Call], threads: Mapping[int, Thread], pause_ns: int | None) -> list[Request]:
    """The requests of a process, in order: those that were seen from their beginning to their end, and those that went
    on when the recording ended.
    """
    until = seen.launches_until
    lanes = _lanes(made)
    least = LEAST_PAUSE_NS if pause_ns is None else pause_ns
    rests: list[list[int]] | None = None
    if pause_ns is None:
        told = [[call for call in own if call.start_ns < until] for own in lanes] if until is not None else lanes
        rests = [_rests(own, threads, least) for own in told]
        pause_ns = learnt_pause(itertools.chain.from_iterable(rests))
    if until is not None:
        made = sorted([*made, *unseen_launches(made, threads, until, pause_ns)])
        lanes, rests = _lanes(made), None
    if rests is None:
        rests = [_rests(own, threads, least) for own in lanes]
    parted = [list(_between_pauses(own, rest, pause_ns)) for own, rest in zip(lanes, rests, strict=True)]
    every = _usual(parted)
    found = [
        request
        for number, groups in enumerate(parted)
        for request in _requests(groups, _usual([groups]) or every, number, seen.end_ns)
    ]
    found.sort(key=lambda request: request.start_ns)
    find_earlier_work(found, made)
    return found


def learnt_pause(rests: Iterable[int]) -> int:
    """How long a pause is at least, from how long a program rests between calls: times within requests and those
    between them are of different lengths, and the pause is in the widest gap (of the logarithm) among all.
    """
    lengths = sorted(length for length in rests if length >= LEAST_PAUSE_NS)
    best, pause = CLEAR, USUAL_PAUSE_NS
    for shorter, longer in itertools.pairwise([LEAST_PAUSE_NS, *lengths]):
        if shorter <= MOST_PAUSE_NS and longer / shorter > best:
            best, pause = longer / shorter, round((longer * shorter) ** 0.5)
    return min(pause, MOST_PAUSE_NS)


def _lanes(made: Sequence[Call]) -> list[list[Call]]:
    """The calls of threads that make requests together, in order, and by stream where those overlap."""
    leader: dict[int, int] = {}

    def lead(tid: int) -> int:
        while leader.setdefault(tid, tid) != tid:
            tid = leader[tid]
        return tid

    def join(one: int, other: int) -> None:
        leader[lead(other)] = lead(one)

    by_stream: dict[int, int] = {}
    launch, wait = set(), set()
    for call in made:
        lead(call.tid)
        if call.kind in (Kind.WORK, Kind.BOTH):
            launch.add(call.tid)
        if call.kind in (Kind.WAIT, Kind.BOTH):
            wait.add(call.tid)
        if call.argument not in SHARED:
            join(by_stream.setdefault(call.argument, call.tid), call.tid)
    # Who only launches is waited for by somebody who only waits.
    only_launch = {lead(tid) for tid in launch} - {lead(tid) for tid in wait}
    only_wait = {lead(tid) for tid in wait} - {lead(tid) for tid in launch}
    if only_wait:
        for tid in only_launch:
            join(min(only_wait), tid)
    lanes: dict[int, list[Call]] = {}
    for call in made:
        lanes.setdefault(lead(call.tid), []).append(call)
    return [part for lane in lanes.values() for part in _by_stream(lane)]


def _by_stream(own: Sequence[Call]) -> list[list[Call]]:
    """The calls of a lane apart by stream, where it serves several requests at once, each on a stream of its own that
    somebody waits for. What is for no such stream belongs to the one that its thread used last.
    """
    waited = Counter(call.argument for call in own if call.kind is Kind.WAIT)
    streams = waited.keys() & {call.argument for call in own if call.kind is Kind.WORK}.difference(SHARED)
    others = sum(number for stream, number in waited.items() if stream not in streams)  # for all that there is
    if len(streams) < 2 or 2 * others > waited.total() or _overlaps(own, streams) < _OVERLAPS:
        return [list(own)]
    lanes: dict[int, list[Call]] = {}
    last: dict[int, int] = {}
    for call in own:
        if call.argument in streams:
            last[call.tid] = call.argument
        lanes.setdefault(last.get(call.tid, call.argument), []).append(call)
    return list(lanes.values())


def _overlaps(own: Sequence[Call], streams: Collection[int]) -> int:
    """How often one began on a stream on which another had ended while a third went on elsewhere all that time."""
    began: dict[int, int] = {}  # where one is under way, the oldest first
    done: dict[int, int] = {}  # when it has been waited for
    number = 0
    for call in own:
        stream = call.argument
        if stream not in streams:
            continue
        if call.kind is Kind.WAIT:
            done[stream] = max(done.get(stream, 0), call.end_ns)
        elif stream not in began or done.get(stream, math.inf) <= call.start_ns:
            began.pop(stream, None)
            ended = done.pop(stream, 0)
            while began and done.get(oldest := next(iter(began)), math.inf) <= call.start_ns:
                del began[oldest]
            number += next(iter(began.values()), call.start_ns) < ended
            began[stream] = call.start_ns
    return number


_TAKEN = [
    frozenset(Mode) - (VOLUNTARY if kind in (Kind.WAIT, Kind.BOTH) else VOLUNTARY - {Mode.RUNNING}) for kind in KINDS
]
"""By function, behind which it is no rest what a thread does in these modes."""


def _rest(before: Call, after: Call, until_ns: int, threads: Mapping[int, Thread]) -> int:
    """How long a lane rested of its own accord between two calls: not for want of a core, nor for a file. What it
    computes while the GPU works for it is no rest; once it has waited for that it may be, as in a program that polls.
    """
    start, end = max(before.end_ns, until_ns), after.start_ns
    if end <= start:
        return 0
    thread = threads.get(after.tid)
    if thread is None:
        return end - start
    return end - start - thread.time_in(start, end, _TAKEN[before.function])


def _rests(own: Sequence[Call], threads: Mapping[int, Thread], least_ns: int) -> list[int]:
    """How long a lane rested between each two of its calls; 0 for less than asked for."""
    until = 0
    found = []
    for before, after in itertools.pairwise(own):
        if before.end_ns > until:
            until = before.end_ns
        found.append(_rest(before, after, until, threads) if after.start_ns - until >= least_ns else 0)
    return found


def _requests(parted: Sequence[list[Call]], usual: range, number: int, end_ns: int) -> Iterator[Request]:
    *groups, last = _joined(parted, usual)
    found = [request for group in groups for request in _request(group, number)]
    yield from found
    if _goes_on(last, end_ns, waits=bool(found)):
        yield _made_of(last, end_ns, number, goes_on=True)
    else:
        yield from _request(last, number)


def _between_pauses(own: Sequence[Call], rests: Sequence[int], pause_ns: int) -> Iterator[list[Call]]:
    group: list[Call] = []
    retry = False  # it was refused memory: what it does about that is no pause
    for call, rested in zip(own, itertools.chain([0], rests), strict=True):
        if group and not retry and rested >= pause_ns:
            yield group
            group = []
        group.append(call)
        if KINDS[call.function] is Kind.MEMORY and call.name != "cuMemFree":
            retry = call.result != 0
    if group:
        yield group


def _usual(lanes: Sequence[Sequence[list[Call]]]) -> range:
    """How many launches requests of lanes have that nothing parts; none where too few tell."""
    whole = sorted(
        _launches(group)
        for groups in lanes
        for before, group in itertools.pairwise([[], *groups])
        if not (_is_open(before) or _is_open(group))
    )
    if len(whole) < max(_ENOUGH, 2 * sum(_is_open(group) for groups in lanes for group in groups)):
        return range(0)
    few = len(whole) // 20
    return range(whole[few], whole[-1 - few] + 1)


def _joined(groups: Sequence[list[Call]], usual: range) -> Iterator[list[Call]]:
    """What a program slept in the middle of a request parts it no less than a pause does. It is one request where the
    rest waits for what was launched before, and nothing else does; or where both together have as many launches as
    is usual, by those of the same threads or, where these have made few, by all, and the rest alone has not.
    """
    begun: list[Call] = []
    for group in groups:
        if _is_open(begun) and _belongs(begun, group, usual):
            begun += group
        else:
            if begun:
                yield begun
            begun = list(group)
    if begun:
        yield begun


def _is_open(group: Sequence[Call]) -> bool:
    """Whether it ends with work that nobody has waited for."""
    last = next((call for call in reversed(group) if call.kind is not Kind.MEMORY), None)
    return last is not None and last.kind is Kind.WORK


def _belongs(begun: Sequence[Call], group: Sequence[Call], usual: range) -> bool:
    first = next((call for call in group if call.kind is not Kind.MEMORY), None)
    if first is not None and first.kind is Kind.WAIT:
        return all(call.kind in _LAUNCHES for call in begun) or all(call.kind in _WAITS for call in group)
    return bool(usual) and _off(_launches([*begun, *group]), usual) < _off(_launches(group), usual)


def _off(launches: int, usual: range) -> float:
    """How many times more or fewer than usual."""
    if launches in usual:
        return 1.0
    return launches / usual[-1] if launches > usual[-1] else usual[0] / max(launches, 1)


def _goes_on(group: Sequence[Call], end_ns: int, *, waits: bool) -> bool:
    """Whether a lane's last calls wait still, or have not begun to, where requests of this lane do wait."""
    if group[0].start_ns >= end_ns or not any(call.kind in (Kind.WORK, Kind.BOTH) for call in group):
        return False
    if any(call.end_ns >= end_ns for call in group if call.kind in (Kind.WAIT, Kind.BOTH)):
        return True
    return waits and _is_open(group) and not any(call.kind is Kind.WAIT for call in group)


def _request(group: Sequence[Call], number: int) -> Iterator[Request]:
    """The request that ends with the last wait; none where nothing is launched, or waited for."""
    ends = [call.end_ns for call in group if call.kind in (Kind.WAIT, Kind.BOTH)]
    if ends and any(call.kind in (Kind.WORK, Kind.BOTH) for call in group):
        yield _made_of(group, max(ends), number)


def _made_of(group: Sequence[Call], end_ns: int, number: int, *, goes_on: bool = False) -> Request:
    own = [call for call in group if call.start_ns < end_ns]
    tids = sorted({call.tid for call in own})
    return Request(own[0].start_ns, end_ns, own, number, tids, launches=_launches(own), goes_on=goes_on)


def _launches(own: Sequence[Call]) -> int:
    """How many launches a request has."""
    return sum(1 + call.folded for call in own if call.kind in (Kind.WORK, Kind.BOTH))
