"""What the functions of the kernel that a thread blocked in say of why, beside the plain cases of test_why.py."""

from __future__ import annotations

import pytest

from runlist.why.seen import Mode, What
from runlist.why.symbols import mode_of
from tests.fixtures.why_events import (
    STACK_OF_MAP,
    Event,
    back,
    call,
    launch,
    out,
    row_of,
    seen,
    us,
    wake,
)


@pytest.mark.parametrize(
    "names",
    [
        "rwsem_down_read_slowpath down_read_killable lock_mm_and_find_vma exc_page_fault asm_exc_page_fault",
        "rwsem_down_read_slowpath __down_read down_read do_user_addr_fault exc_page_fault asm_exc_page_fault",
        "rwsem_down_read_slowpath down_read do_page_fault do_mem_abort el0_da",
        "rwsem_down_write_slowpath down_write_killable vm_mmap_pgoff ksys_mmap_pgoff do_syscall_64",
        "rwsem_down_write_slowpath down_write_killable __vm_munmap __x64_sys_munmap do_syscall_64",
        "rwsem_down_write_slowpath down_write_killable do_mprotect_pkey.constprop.0 __arm64_sys_mprotect",
        "rwsem_down_write_slowpath down_write_killable dup_mmap dup_mm copy_process kernel_clone",
        "rwsem_down_read_slowpath down_read find_active_uprobe_rcu uprobe_notify_resume asm_exc_int3",
    ],
)
def test_who_waits_for_its_memory_map_neither_sleeps_nor_reads(names: str) -> None:
    """Another thread changes it meanwhile: a thread cannot even have a page of its own by then."""
    assert mode_of(["__schedule", "schedule", "schedule_preempt_disabled", *names.split()]) is Mode.MAPPING


def test_a_lock_of_a_file_is_none_of_the_memory_map() -> None:
    reading = ["schedule", "rwsem_down_read_slowpath", "down_read", "filemap_fault", "do_fault", "exc_page_fault"]
    assert mode_of(reading) is Mode.FAULT
    assert mode_of(["schedule", "rwsem_down_write_slowpath", "down_write", "ext4_buffered_write_iter"]) is Mode.FILE


def test_another_thread_that_has_the_memory_map_is_named() -> None:
    events = [
        launch(0), out(50, stack=STACK_OF_MAP), wake(50_000, by=101), back(50_010), *call(50_100, 50_200),
        out(90, 101, to=5, name="short"),
    ]  # fmt: skip
    row = row_of(seen([*events, Event(us(60_000), What.OUT, 102, other=101, name="mapper")], 90_000), pause_us=30_000)
    assert row.why == (
        "it waited for its memory map, which another of its threads, mapper [101], changed (mmap, munmap, mprotect, "
        "fork), for 50.0 ms"
    )
    unknown = [launch(0), out(50, stack=STACK_OF_MAP), wake(50_000), back(50_010), *call(50_100, 50_200)]
    assert row_of(seen(unknown, 90_000), pause_us=30_000).why == (
        "it waited for its memory map, which another thread changed or looked at (mmap, munmap, mprotect, fork), "
        "for 50.0 ms"
    )
