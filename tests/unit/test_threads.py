"""Starting threads while memory is short."""

from __future__ import annotations

import mmap
import threading

import pytest

from runlist.proc import exhaustion, threads


def test_a_thread_starts_only_where_there_is_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # to be put back
    threads.refuse_without_memory()
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    thread.start()
    thread.join()
    assert ran.is_set()

    def full(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    refused = threading.Thread(target=ran.clear)
    with pytest.raises(RuntimeError) as raised:
        refused.start()
    assert exhaustion.passes(raised.value)
    assert ran.is_set()
    assert not refused.is_alive()
