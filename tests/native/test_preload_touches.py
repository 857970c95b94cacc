"""A touch loads a context before there is work for it: when it is made, beside a driver that writes down each call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.daemon import short_path
from tests.fixtures.ear import Ear
from tests.native.guests import Guests
from tests.native.servers import GENERATE, Server, ear, served

__all__ = ["ear", "short_path"]


class Touched:
    """A server on that driver."""

    def __init__(self, server: Server, path: Path) -> None:
        self.do = server.do
        self.server = server
        self._path = path
        self._seen = 0

    def asked(self) -> str:
        """What was asked of the driver since the last time: (q)uestions, (h)ost functions, fills of (m)emory."""
        text = self._path.read_text() if self._path.exists() else ""
        fresh, self._seen = text[self._seen :], len(text)
        return fresh


@contextmanager
def touched(guests: Guests, ear: Ear, **more: str) -> Iterator[Touched]:
    folder = guests.path("touched/libcuda.so.1").parent
    path = guests.new_path()
    with served(guests, ear, LD_LIBRARY_PATH=str(folder), TOUCHES=str(path), **more) as one:
        yield Touched(one, path)


@pytest.fixture
def on_driver(guests: Guests, ear: Ear) -> Iterator[Touched]:
    with touched(guests, ear) as one:
        one.do("hint", "launch", "stream")  # at a launch what a touch needs is made
        one.do("pause-2")
        assert one.asked() == ""
        yield one


def test_a_hint_touches(on_driver: Touched) -> None:
    for _ in range(3):
        on_driver.do("hint")
        assert on_driver.asked() == "qm"


def test_none_where_a_handler_may_run_with_no_signal_blocked(on_driver: Touched) -> None:
    """It may have interrupted the driver, which would wait for itself. Handlers are looked at once a second."""
    on_driver.do("nodefer")
    time.sleep(1.1)
    on_driver.do("hint")
    assert on_driver.asked() == ""
    on_driver.do("defer")
    time.sleep(1.1)
    on_driver.do("hint")
    assert on_driver.asked() == "qm"


def test_an_announcement_touches(on_driver: Touched) -> None:
    server = on_driver.server
    server.connect()
    server.learns()
    on_driver.asked()
    server.watch()
    server.reads(GENERATE)
    assert on_driver.asked() in ("qm", "qhm", ""), "nothing where it is far ahead"
    server.watch()
    server.do("begin")
    assert on_driver.asked() == "qm"


def test_a_touch_is_put_off_until_shortly_before_the_work(on_driver: Touched) -> None:
    on_driver.do("hint-2000")
    assert on_driver.asked() == "qhm"
    on_driver.do("hint-100")
    assert on_driver.asked() == "qm"
    on_driver.do("hint-4000")
    assert on_driver.asked() == ""


def test_a_touch_is_no_work(on_driver: Touched) -> None:
    region = on_driver.server.region
    before = region.activities()[on_driver.server.pid].work
    on_driver.do("hint", "hint")
    assert region.activities()[on_driver.server.pid].work == before


def test_in_a_thread_without_a_context(on_driver: Touched) -> None:
    on_driver.do("thread-hint")
    assert on_driver.asked() == "qm"


def test_no_handler_calls_the_driver(on_driver: Touched) -> None:
    assert on_driver.do("handler-hint") == 0
    assert on_driver.asked() == ""


def test_not_before_the_last_touch_is_done(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear, ANSWER="600") as one:  # not ready
        one.do("hint", "launch", "stream", "hint", "hint")
        assert one.asked() == "qq"


def test_a_driver_that_refuses_is_asked_no_more(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear, ANSWER="999") as one:
        one.do("hint", "launch", "stream", "hint", "hint", "launch", "hint")
        assert one.asked() == "q"


def test_before_there_is_a_context_nothing_is_touched(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear) as one:
        one.do("hint", "hint")
        assert one.asked() == ""


def test_a_context_that_ended_is_left_alone_until_there_is_work_again(on_driver: Touched) -> None:
    on_driver.do("reset", "hint")
    assert on_driver.asked() == ""
    on_driver.do("launch", "stream", "hint")
    assert on_driver.asked() == "qm"


def test_who_hints_and_is_forked_touches_for_itself(on_driver: Touched) -> None:
    server = on_driver.server
    server.connect()
    server.learns()
    on_driver.asked()
    server.watch()
    server.client.sendall(GENERATE)
    server.do("fork")
    assert on_driver.asked() == ""
