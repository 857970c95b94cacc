"""Where the running kernel has what the programs read of its structures: the files of a process, what they are, and
how many of its threads live.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runlist.planes.kernel import btf

REFUSE = "bpf_lsm_file_ioctl"
"""The function at which the kernel asks whether a request may be."""

_FIELDS = {
    "task_struct": ("files", "signal"),
    "signal_struct": ("live",),
    "files_struct": ("fdt",),
    "fdtable": ("max_fds", "fd"),
    "file": ("f_inode", "f_ref", "f_count"),
    "inode": ("i_rdev", "i_ino", "i_sb"),
    "super_block": ("s_dev",),
}
_COUNTS = {"file_f_ref": 0, "file_f_count": 1}
"""Where a file's references are counted, before Linux 6.13 and since, and what stands there if it has one."""


class KernelTypes(msgspec.Struct, frozen=True):
    """Places of fields in bytes, by `structure_field`; all 0 where one is not known. `files` is one more than what a
    file's count of references is that has one, or 0 where places are not known. `hook` is the number of the function
    REFUSE, 0 where there is none; `unknown` says why places are not known.
    """

    places: Mapping[str, int]
    files: int = 0
    hook: int = 0
    unknown: str = ""


def find() -> KernelTypes:
    """As the running kernel tells it."""
    nowhere = dict.fromkeys([f"{of}_{name}" for of, names in _FIELDS.items() for name in names], 0)
    nowhere["file_references"] = 0
    try:
        found = btf.read(btf.KERNEL.read_bytes(), btf.Wanted(_FIELDS, (REFUSE,)))
    except (OSError, ValueError) as error:
        return KernelTypes(nowhere, unknown=f"the kernel does not tell its types ({error})")
    hook = found.functions.get(REFUSE, 0)
    counts = [name for name in _COUNTS if name in found.places]
    places = {**found.places, "file_references": found.places[counts[0]] if counts else 0}
    missing = nowhere.keys() - places.keys() - _COUNTS.keys()
    if missing or not counts:
        return KernelTypes(nowhere, hook=hook, unknown=f"its types are others: no {min(missing, default='count')}")
    return KernelTypes(places, 1 + _COUNTS[counts[0]], hook)
