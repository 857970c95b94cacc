"""A job as a node sees it: what Slurm tells a prolog of it, and what it gets of each GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runlist.errors import UsageError
from runlist.integrations.parts import weight_of
from runlist.integrations.slurm import queue

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job on this node. `part` is what it has of each of its GPUs, 0 to 1; None where that is not known."""

    id: int
    uid: int
    node: str
    part: float | None

    @property
    def weight(self) -> int | None:
        """In proportion to its part."""
        return None if self.part is None else weight_of(self.part)


def job_id(variables: Mapping[str, str]) -> int:
    """The id of the job whose prolog or epilog this is. Raises UsageError outside of one."""
    return _number(variables, "SLURM_JOB_ID", 1)


def node_name(variables: Mapping[str, str]) -> str:
    """Slurm's name of this node; empty where it is not told, or none."""
    name = variables.get("SLURMD_NODENAME", "")
    return name if _NODE.fullmatch(name) else ""


def find_job(variables: Mapping[str, str], shards: int | None) -> Job | None:
    """The job of a prolog's variables, None for one without a GPU. `shards`: how many a GPU has; else Slurm is asked.

    slurmd sets the variables itself, and gives those of users under other names (`SPANK_…`). Raises UsageError and
    NoAnswer.
    """
    job, uid, node = job_id(variables), _number(variables, "SLURM_JOB_UID", 0), node_name(variables)
    told = variables.get("SLURM_SHARDS_ON_NODE", "")  # newer versions tell; 22.05 does not
    gres = queue.Gres(shards=int(told)) if re.fullmatch(r"[0-9]{1,6}", told) else queue.job_gres(job)
    if gres.shards:
        of_each = shards or _shards_of_a_gpu(node)
        return Job(job, uid, node, min(1.0, gres.shards / of_each) if of_each else None)
    return Job(job, uid, node, 1.0) if gres.gpus else None


def _shards_of_a_gpu(node: str) -> int:
    """0 where nobody knows."""
    try:
        has = queue.node_gres(node) if node else queue.Gres()
    except queue.NoAnswer:
        return 0
    return has.shards // max(1, has.gpus)


def _number(variables: Mapping[str, str], name: str, least: int) -> int:
    text = variables.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) < 1 << 32:
        raise UsageError(f"{name} is {text[:20]!r}: this is for slurmd to run, as a prolog or epilog (docs/slurm.md)")
    return int(text)
