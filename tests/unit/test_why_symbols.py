"""What the functions of the kernel that a thread blocked in say of why, beside the plain cases of test_why.py."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            "locks_lock_inode_wait __do_sys_flock",
            "it waited for a lock on a file, which another one has (flock, fcntl),",
        ),
        (
            "fcntl_setlk do_fcntl __x64_sys_fcntl",
            "it waited for a lock on a file, which another one has (flock, fcntl),",
        ),
        ("schedule_hrtimeout_range __do_semtimedop", "it waited for a semaphore (semop)"),
        ("schedule_timeout wait_for_completion synchronize_rcu_normal __x64_sys_membarrier", "it waited in the kernel"),
        ("__mutex_lock.constprop.0 bpf_map_update", "it waited in the kernel"),
        ("rwsem_down_write_slowpath down_write keyctl_something", "it waited in the kernel"),
    ],
)
def test_who_waits_for_another_or_for_the_kernel_does_not_sleep_of_its_own_accord(names: str, why: str) -> None:
    mode = mode_of(["__schedule", "schedule", *names.split(), "do_syscall_64"])
    events = [launch(0), out(50, stack=99), wake(50_000), back(50_010), *call(50_100, 50_200)]
    row = row_of(replace(seen(events, 90_000), mode_of=lambda _: mode), pause_us=90_000)
    assert row.why.startswith(f"{why} for 50.0 ms")


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
