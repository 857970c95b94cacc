"""What the functions of the kernel that a thread blocked in say of why it did."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from runlist.why.seen import Mode

_STOPS = ("get_signal", "do_signal_stop", "ptrace_stop", "do_freezer_trap", "__refrigerator")
_RECLAIMS = ("mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high", "mem_cgroup_oom_synchronize",
             "try_to_free_mem_cgroup_pages", "try_to_free_pages")  # fmt: skip
_FAULTS = ("exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "do_page_fault", "handle_mm_fault",
           "do_mem_abort", "el0_da", "el0_ia", "handle_userfault", "do_fault")  # fmt: skip
_FILES = ("io_schedule", "filemap_", "folio_wait", "fuse_", "request_wait_answer", "submit_bio_wait", "blk_",
          "vfs_fsync",
          "ext4_", "xfs_", "btrfs_", "nfs_", "jbd2_", "iomap_", "wait_on_page", "balance_dirty_pages")  # fmt: skip
_LOCKS = ("futex_", "do_futex")
_DRIVER = ("nvidia_", "nv_", "rm_", "_nv0", "uvm_", "nvkms_")
_WAYS: tuple[tuple[Mode, tuple[str, ...]], ...] = (
    (Mode.STOPPED, _STOPS), (Mode.RECLAIM, _RECLAIMS), (Mode.FAULT, _FAULTS), (Mode.FILE, _FILES),
    (Mode.LOCK, _LOCKS), (Mode.DRIVER, _DRIVER),
)  # fmt: skip
"""The first that fits: a page fault that waits for a disk is both, and one may be stopped on the way back from it."""


def mode_of(names: Iterable[str]) -> Mode:
    """Why a thread blocked, by the functions that it was in."""
    held = list(names)
    for mode, beginnings in _WAYS:
        if any(name.startswith(beginnings) for name in held):
            return mode
    return Mode.ASLEEP


class Symbols:
    """The functions of the running kernel by address; none where we may not know them."""

    def __init__(self, path: Path = Path("/proc/kallsyms")) -> None:
        found: list[tuple[int, str]] = []
        try:
            with path.open(encoding="ascii", errors="replace") as file:
                for line in file:
                    address, kind, name = line.split(None, 3)[:3]
                    if kind in "tTwW":
                        found.append((int(address, 16), name))
        except (OSError, ValueError):
            found = []
        found.sort()
        self._addresses = [address for address, _ in found]
        self._names = [name for _, name in found]

    @property
    def known(self) -> bool:
        """Whether it tells anything."""
        return bool(self._addresses) and self._addresses[-1] != 0

    def names(self, addresses: Sequence[int]) -> list[str]:
        """The functions at these addresses."""
        if not self.known:
            return []
        places = [bisect_right(self._addresses, address) - 1 for address in addresses]
        return [self._names[place] for place in places if place >= 0]
