"""Any input to a reader of what strangers and careless users write: refused in one line, or taken for what it says.

`make checks` gives each reader a million inputs. An input that failed is written beside the test's temporary files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runlist.errors import LONGEST, RunlistError
from tests.fixtures.effort import TIMES
from tests.hostile.read_files import (
    disb,
    drop_in,
    operations_written,
    pai,
    profiles_given,
    profiles_kept,
    rules,
    scenario,
    workload,
)
from tests.hostile.read_kernel import kernel_events, kernel_object, kernel_ring, library_watched
from tests.hostile.read_messages import datagrams, frames, lengths, region, told_clients
from tests.hostile.read_pods import annotations, container_state, metrics
from tests.hostile.read_settings import amounts, environment, policy_options, settings
from tests.hostile.reader import Reader

INPUTS = 1_000_000 if TIMES > 1 else 1_000
"""For each reader."""

SLOWEST_S = 2.0
"""Processor time that one input may take."""

MOST_GROWTH = 16 << 20
"""Bytes of resident memory, between the first tenth of the inputs and the end."""


class TooLong(Exception):
    """An input was not done in time."""


READERS = (
    frames,
    lengths,
    datagrams,
    region,
    told_clients,
    settings,
    amounts,
    environment,
    policy_options,
    rules,
    drop_in,
    scenario,
    disb,
    workload,
    operations_written,
    profiles_given,
    profiles_kept,
    pai,
    kernel_events,
    kernel_ring,
    kernel_object,
    library_watched,
    annotations,
    container_state,
    metrics,
)


@contextmanager
def alarm() -> Iterator[Callable[[], None]]:
    """Call what it gives now and then: ten inputs' worth of processor time without a call raises TooLong."""

    def too_long(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, too_long)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 10 * SLOWEST_S) and None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def resident() -> int:
    """Bytes of this process' memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def check_line(error: Exception) -> None:
    """An error for a person."""
    if isinstance(error, RunlistError):
        line = str(error)
        assert line
        assert line.isprintable(), f"no line to show: {line!r}"
        assert len(line) <= LONGEST


@pytest.mark.timeout(240 if TIMES == 1 else 3600)
@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_any_input(make: Callable[[Path], Reader], tmp_path: Path, record_property: Any) -> None:
    reader = make(tmp_path)
    taken, first = 0, 0
    failed = tmp_path / "failed"
    with alarm() as wind:
        for number in range(INPUTS):
            if number % 64 == 0:
                wind()
            if number == INPUTS // 10:
                first = resident()
            data = reader.inputs.next()
            began = time.thread_time()
            try:
                reader.read(data)
                taken += 1
            except reader.refuses as error:
                check_line(error)
            except BaseException:
                failed.write_bytes(data)
                print(f"input {number}, in {failed}: {data[:600]!r}")
                raise
            took = time.thread_time() - began
            if took > SLOWEST_S:
                failed.write_bytes(data)
                pytest.fail(f"input {number}, in {failed}: {took:.1f} s for {data[:600]!r}")
    grown = resident() - first
    record_property("taken", taken)
    assert grown < MOST_GROWTH, f"{grown >> 20} MiB more"
    assert taken > INPUTS // 50, "hardly any input is in order"
    assert taken < INPUTS, "every input is in order"
