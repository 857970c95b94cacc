"""The drop-in rule of a job, and the files of jobs in the daemon's folder."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from runlist.integrations import drop_ins
from runlist.integrations.slurm.job import Job
from runlist.units import parse_size

_FILE = re.compile(r"(?:slurm-([0-9]{1,10})\.toml|\.slurm-([0-9]{1,10}))")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a site wants of each job: its class, whether its part is also a cap, the memory of a whole GPU, of which it
    may hold its part, and whether its processes are told by their environment, for lack of cgroups.
    """

    task_class: str = ""
    cap: bool = False
    memory: str = ""
    by_environment: bool = False


def text_of(job: Job, wishes: Wishes) -> str:
    """The content of a job's file."""
    settings = {"group": f"slurm-{job.id}"}
    if wishes.task_class:
        settings["class"] = wishes.task_class
    if job.weight is not None:
        settings["weight"] = str(job.weight)
    if job.part is not None and job.part < 1:
        if wishes.cap:
            settings["cap"] = f"{100 * job.part:.4g}"
        if wishes.memory and (size := parse_size(wishes.memory)):
            settings["memory"] = str(int(size * job.part))
    who: dict[str, drop_ins.Value]
    if wishes.by_environment:
        who = {"user": job.uid, "environment": {"SLURM_JOB_ID": str(job.id)}}
    else:
        who = {"cgroup": [f"{path}/*" for path in cgroups_of(job.id, job.uid, job.node)]}
    head = f"Job {job.id} of user {job.uid}: written by `runlist slurm prolog`, removed by `runlist slurm epilog`."
    return drop_ins.rule_text(head, who, {"job": str(job.id)}, settings)


def cgroups_of(job: int, uid: int, node: str) -> list[str]:
    """Where Slurm puts the steps of a job: in the older hierarchies, and in the unified one."""
    nodes = ["", *([node] if node else [])]  # a slurmd that shares its machine with others adds its name
    older = [f"/slurm{name and f'_{name}'}/uid_{uid}/job_{job}" for name in nodes]
    return older + [f"/system.slice/{name and f'{name}_'}slurmstepd.scope/job_{job}" for name in nodes]


class Jobs:
    """The files of jobs in the folder of drop-ins. Methods raise RunlistError or OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = drop_ins.Folder(folder)

    def write(self, job: int, text: str) -> None:
        """Put a job's file there."""
        with self._folder as folder:
            folder.put(f"slurm-{job}.toml", text)

    def remove(self, job: int) -> None:
        """Take away what a job has there: first the mark that says that it is on this node."""
        with self._folder as folder:
            for name in (f".slurm-{job}", f"slurm-{job}.toml"):
                folder.remove(name)

    def jobs(self, older_than_s: float = 0.0) -> set[int]:
        """Jobs that have files there which nobody wrote for so long."""
        found = set()
        with self._folder as folder:
            for name in folder.names():
                if (match := _FILE.fullmatch(name)) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        age_s = time.time() - os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mtime
                        if age_s >= older_than_s:
                            found.add(int(match[1] or match[2]))
        return found


def has_cgroup(job: int) -> bool:
    """Whether a job has a cgroup on this machine, so that it runs."""
    patterns = (f"slurm*/uid_*/job_{job}", f"system.slice/*slurmstepd.scope/job_{job}")
    return any(next(_CGROUPS.glob(f"{above}{pattern}"), None) for above in ("", "*/") for pattern in patterns)
