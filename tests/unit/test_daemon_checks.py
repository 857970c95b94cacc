"""What the daemon looks at again and again: how often, and when it rests for longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import __main__ as module


def test_memory_is_looked_at_often_where_limited_and_else_behind_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = SimpleNamespace(now=100.0), []

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        guard.hurries = clock.now > 110
        if clock.now > 114:
            raise KeyboardInterrupt

    @contextlib.asynccontextmanager
    async def timeout(longest_s: float) -> AsyncIterator[None]:
        """Half of the checks stand."""
        stands = len(looks) % 2 == 1
        await sleep(longest_s if stands else module.CHECK_EVERY_S)
        if stands:
            raise TimeoutError
        yield

    async def check() -> None:
        looks.append(clock.now)

    guard = SimpleNamespace(hurries=False, check=check)
    daemon: Any = SimpleNamespace(guard=guard)
    checked: Any = SimpleNamespace(wait=partial(asyncio.sleep, 0))
    drawn: list[tuple[float, float]] = []
    chance = SimpleNamespace(uniform=lambda low, high: drawn.append((low, high)) or (low + high) / 2)
    monkeypatch.setattr(module, "random", SimpleNamespace(SystemRandom=lambda: chance))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, timeout=timeout))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._guard(daemon, checked))
    calm, hurried = [at for at in looks if at <= 110], [at for at in looks if at > 110]
    assert len(calm) == 5
    assert 6 <= len(hurried) <= 8
    assert set(drawn) == {(0.5, 1.5)}  # nobody knows the moments


def test_checks_come_once_a_second_and_of_slices_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    tells, rounds = [False], [6]

    async def sleep(seconds: float) -> None:
        said.append(f"waited {seconds}")
        if said.count(f"waited {seconds}") > rounds[0]:
            raise KeyboardInterrupt

    async def nothing() -> None:
        said.append("looked")

    async def seek(listed: bool) -> None:
        said.append(f"sought, {listed}")

    processes = SimpleNamespace(forget_heirs=nothing, expected=set(), managed={})
    daemon: Any = SimpleNamespace(
        gpus=SimpleNamespace(
            read_usage=lambda kept_s: said.append(("usage", kept_s < module.CHECK_EVERY_S)), look_beside=lambda: None
        ),
        checks=SimpleNamespace(check=lambda files, slices, of: said.append((files, slices))),
        keeper=SimpleNamespace(look=lambda: None),
        rousing=SimpleNamespace(look=lambda: said.append("roused")),
        processes=processes,
        manager=SimpleNamespace(
            look_who_joined=lambda: said.append("who joined"), look_who_is_left=lambda: said.append("who is left")
        ),
        kernel=SimpleNamespace(
            works=False, check=lambda: (said.append("ring"), tells[0])[1], asking=lambda managed: set()
        ),
        sightings=SimpleNamespace(count=lambda: said.append("counts")),
        search=SimpleNamespace(seek=seek),
        opened=SimpleNamespace(set=lambda: said.append("opened")),
    )
    limit: Any = SimpleNamespace(say_left_out=lambda: said.append("left out"))

    def checks() -> list[object]:
        return [each for each in said if isinstance(each, tuple) and each[0] != "usage"]

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._check(daemon, limit, asyncio.Event()))
    assert checks() == [(True, False), (True, False), (True, True)] * 2
    assert said.count("left out") == said.count(("usage", True)) == 6
    assert said.count("looked") == said.count("sought, True") == 6
    assert said.count("ring") == said.count("roused") == said.count("who joined") == 6
    assert said.count("counts") == 2
    assert said.count("who is left") == 6
    assert "opened" not in said
    said.clear()
    processes.expected.add(7)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._check(daemon, limit, asyncio.Event()))
    assert said.count("opened") == 6  # it may have a context again at any moment
    said.clear()
    tells[0], rounds[0] = True, 60
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._check(daemon, limit, asyncio.Event()))
    assert checks() == ([(False, False)] * 29 + [(True, True)]) * 2


def test_while_nothing_happens_checks_come_half_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    looks: list[tuple[float, bool, bool]] = []
    used: set[int] = set()  # at these seconds a GPU was in use,
    untold: set[int] = set()  # the kernel did not tell all,
    waiting: set[int] = set()  # and somebody waited for the GPU

    def now() -> int:
        return int(sum(rests))

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if now() > 60:
            raise KeyboardInterrupt

    async def nothing() -> None:
        pass

    daemon: Any = SimpleNamespace(
        gpus=SimpleNamespace(read_usage=lambda kept_s: now() in used, look_beside=lambda: None),
        checks=SimpleNamespace(check=lambda files, slices, of: looks.append((now(), files, slices))),
        keeper=SimpleNamespace(look=lambda: None),
        rousing=SimpleNamespace(look=lambda: now() in waiting),
        processes=SimpleNamespace(forget_heirs=nothing, expected=set(), managed={}),
        manager=SimpleNamespace(look_who_joined=lambda: None, look_who_is_left=lambda: None),
        kernel=SimpleNamespace(works=True, check=lambda: now() not in untold, asking=lambda managed: set()),
        sightings=SimpleNamespace(count=lambda: None),
        search=SimpleNamespace(seek=lambda listed: nothing()),
    )
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))

    def run() -> list[float]:
        rests.clear()
        looks.clear()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(module._check(daemon, SimpleNamespace(say_left_out=lambda: None), asyncio.Event()))  # type: ignore[arg-type]
        return rests

    assert run() == [1.0] * 10 + [2.0] * 26
    assert [each for each in looks if each[1]] == [(30, True, True), (60, True, True)]
    for seen in (used, untold, waiting):
        seen.add(20)
        again = 11 if seen is untold else 10  # till then it was not told
        assert run()[:39] == [1.0] * 10 + [2.0] * 5 + [1.0] * again + [2.0] * (24 - again)
        seen.clear()
    untold |= set(range(100))
    assert run() == [1.0] * 61
    assert [at for at, _, slices in looks if slices] == list(range(3, 61, 3))


def test_who_waits_to_checkpoint_is_looked_for_behind_checks_or_as_rarely_as_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[float] = []
    now = 0.0

    async def wait() -> None:
        nonlocal now
        now = float(int(now) + 1)
        if now == 30:
            raise KeyboardInterrupt

    async def look() -> None:
        nonlocal now
        looked.append(now)
        now += 0.01 if len(looked) < 3 else 0.7

    daemon: Any = SimpleNamespace(checkpoints=SimpleNamespace(look=look))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    checked: Any = SimpleNamespace(wait=wait)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._see_checkpoints(daemon, checked))
    assert looked == [1, 2, 3, 11, 19, 27]


def test_after_a_gap_in_what_the_kernel_tells_files_and_slices_are_looked_at_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And those of who asked the driver for something, within three seconds, once."""
    checks: list[tuple[bool, bool]] = []
    asked: list[set[int]] = []
    asking = [{7}]

    async def sleep(seconds: float) -> None:
        if len(checks) == 12:
            raise KeyboardInterrupt

    async def nothing() -> None:
        pass

    daemon: Any = SimpleNamespace(
        gpus=SimpleNamespace(read_usage=lambda kept_s: None, look_beside=lambda: None),
        checks=SimpleNamespace(check=lambda files, slices, of: (checks.append((files, slices)), asked.append(set(of)))),
        processes=SimpleNamespace(forget_heirs=nothing, expected=set(), managed={}),
        keeper=SimpleNamespace(look=lambda: None),
        rousing=SimpleNamespace(look=lambda: None),
        manager=SimpleNamespace(look_who_joined=lambda: None, look_who_is_left=lambda: None),
        kernel=SimpleNamespace(
            works=True,
            check=lambda: len(checks) != 4,
            asking=lambda managed: asking.pop() if len(checks) >= 6 and asking else set(),
        ),
        sightings=SimpleNamespace(count=lambda: None),
        search=SimpleNamespace(seek=lambda listed: nothing()),
    )
    limit: Any = SimpleNamespace(say_left_out=lambda: None)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._check(daemon, limit, asyncio.Event()))
    assert checks == [(False, False)] * 4 + [(True, False), (True, True)] + [(False, False)] * 6
    assert asked == [set()] * 8 + [{7}] + [set()] * 3
