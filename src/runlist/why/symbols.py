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
          "vfs_fsync", "do_fsync", "rpc_wait", "p9_client_rpc", "cifs_", "smb2_", "ceph_", "f2fs_", "zpl_",
          "ext4_", "xfs_", "btrfs_", "nfs_", "jbd2_", "iomap_", "wait_on_page", "balance_dirty_pages")  # fmt: skip
_LOCKS = ("futex_", "do_futex")
_CHILDREN = ("kernel_wait", "__do_wait", "__do_sys_wait", "__x64_sys_wait", "__arm64_sys_wait", "wait_for_vfork_done")
_READERS = ("sk_stream_wait", "sock_alloc_send", "sock_wait_for_wmem", "unix_stream_sendmsg", "unix_dgram_sendmsg",
            "unix_wait_for_peer", "tcp_sendmsg", "sock_sendmsg", "__sock_sendmsg", "sock_write_iter", "__sys_send",
            "____sys_sendmsg", "pipe_write", "anon_pipe_write", "fifo_pipe_write")  # fmt: skip
_ANSWERS = ("sock_recvmsg", "sock_read_iter", "tcp_recvmsg", "udp_recvmsg", "unix_stream_read", "unix_dgram_recvmsg",
            "__skb_wait_for_more", "sk_wait_data", "__sys_recv", "____sys_recvmsg", "inet_csk_accept",
            "inet_stream_connect", "__inet_stream_connect", "unix_accept", "unix_stream_connect", "pipe_read",
            "anon_pipe_read", "fifo_pipe_read", "eventfd_read", "n_tty_read", "do_msgrcv",
            "do_mq_timedreceive")  # fmt: skip
_POLLS = ("do_sys_poll", "do_poll", "do_select", "core_sys_select", "ep_poll", "do_epoll")
_TIMERS = ("do_nanosleep", "hrtimer_nanosleep", "common_nsleep")
_DRIVER = ("nvidia_", "nv_", "rm_", "_nv0", "uvm_", "nvkms_")
_TAKING = ("rwsem_down_", "__down_", "down_", "lock_mm_and_find_vma", "mmap_read_lock", "mmap_write_lock",
           "vma_start_")  # fmt: skip
"""What takes a lock that several may have to read."""
_MAPPINGS = ("exc_page_fault", "do_user_addr_fault", "do_page_fault", "vm_mmap", "__vm_munmap", "vm_munmap",
             "do_mprotect", "do_mremap", "__do_sys_mremap", "__x64_sys_mremap", "__arm64_sys_mremap", "do_madvise",
             "madvise_", "__do_sys_brk", "__x64_sys_brk", "__arm64_sys_brk", "dup_mm", "copy_process", "exit_mm",
             "find_active_uprobe", "mlock", "do_mlock", "__mm_populate", "get_user_pages", "__get_user_pages",
             "__gup_longterm", "pin_user_pages", "internal_get_user_pages")  # fmt: skip
"""Who takes the memory map's."""
_FILE_LOCKS = ("locks_lock_inode_wait", "flock_lock_inode", "posix_lock_inode_wait", "do_lock_file_wait", "fcntl_setlk",
               "__break_lease")  # fmt: skip
_SEMAPHORES = ("do_semtimedop", "__do_semtimedop", "do_semop")
_KERNEL = ("wait_for_completion", "synchronize_rcu", "synchronize_srcu", "rcu_barrier", "__wait_rcu_gp", "__mutex_lock",
           "mutex_lock", "rwsem_down_", "rt_mutex_slowlock", "percpu_down", "__percpu_down", "down_timeout",
           "flush_work", "__flush_work")  # fmt: skip
_WAYS: tuple[tuple[Mode, tuple[str, ...]], ...] = (
    (Mode.STOPPED, _STOPS), (Mode.RECLAIM, _RECLAIMS), (Mode.FAULT, _FAULTS), (Mode.FILE, _FILES),
    (Mode.LOCK, _LOCKS), (Mode.DRIVER, _DRIVER), (Mode.CHILD, _CHILDREN), (Mode.READER, _READERS),
    (Mode.ANSWER, _ANSWERS), (Mode.POLL, _POLLS), (Mode.TIMER, _TIMERS), (Mode.FILE_LOCK, _FILE_LOCKS),
    (Mode.SEMAPHORE, _SEMAPHORES), (Mode.KERNEL, _KERNEL),
)  # fmt: skip
"""The first that fits: a page fault that waits for a disk is both, and one may be stopped on the way back from it."""


def mode_of(names: Iterable[str]) -> Mode:
    """Why a thread blocked, by the functions that it was in."""
    held = list(names)
    if _wants_the_map(held):
        return Mode.MAPPING
    for mode, beginnings in _WAYS:
        if any(name.startswith(beginnings) for name in held):
            return mode
    return Mode.ASLEEP


def _wants_the_map(held: Sequence[str]) -> bool:
    """Whether a thread blocked in taking the lock of its memory map."""
    lock = next((place for place, name in enumerate(held) if name.startswith("rwsem_down_")), None)
    if lock is None:
        return False
    taker = next((name for name in held[lock:] if not name.startswith(_TAKING)), "")
    return taker.startswith(_MAPPINGS)


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
