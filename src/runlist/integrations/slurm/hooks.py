"""What Slurm's prolog and epilog do. Neither ever fails: a prolog that did would have Slurm drain the node."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from runlist import log
from runlist.errors import RunlistError
from runlist.integrations.slurm import queue
from runlist.integrations.slurm.drop_in import Jobs, Wishes, has_cgroup, text_of
from runlist.integrations.slurm.job import find_job, job_id, node_name

MARK = "RUNLIST_SLURM_MARK"
"""Names a file that is there as long as the job is on the node, where the prolog goes on after slurmd has gone on: the
script makes it, and the epilog removes it before anything else.
"""
SETTLED_S = 60.0
"""Files that are younger may be of jobs that Slurm's controller does not yet call running."""


def prolog(folder: Path, variables: Mapping[str, str], wishes: Wishes, shards: int | None) -> None:
    """Write the rule of the job that starts, and remove those of jobs whose epilog never ran."""
    jobs = Jobs(folder)

    def start() -> None:
        job = find_job(variables, shards)
        number = job_id(variables)
        if job is None:
            jobs.remove(number)  # of an earlier job with this id
            return
        if job.part is None:
            say(f"job {number}: nobody knows how many shards a GPU has: name it with --shards; no weight is set")
        jobs.write(number, text_of(job, wishes))
        mark = variables.get(MARK)
        if mark and not os.path.lexists(mark):  # the job has ended already
            jobs.remove(number)

    _never_failing(start)
    _never_failing(lambda: _clean(jobs, variables))


def epilog(folder: Path, variables: Mapping[str, str]) -> None:
    """Remove the rule of the job that has ended."""
    _never_failing(lambda: Jobs(folder).remove(job_id(variables)))


def clean(folder: Path, variables: Mapping[str, str]) -> None:
    """Remove the rules of jobs that are gone."""
    _never_failing(lambda: _clean(Jobs(folder), variables))


def _clean(jobs: Jobs, variables: Mapping[str, str]) -> None:
    """Slurm's controller is asked only where a job has no cgroup here; without an answer everything stays."""
    doubtful = {job for job in jobs.jobs(SETTLED_S) if not has_cgroup(job)}
    if doubtful and (node := node_name(variables)):
        for job in sorted(doubtful - queue.live_jobs(node)):
            jobs.remove(job)
            say(f"job {job} is gone, and its epilog did not run: its rule is removed")


def _never_failing(do: Callable[[], None]) -> None:
    """Any fault is one line in the log."""
    try:
        do()
    except (RunlistError, OSError) as error:
        say(str(error))
    except Exception as error:  # whatever it is, the job is not to suffer
        say(f"{type(error).__name__}: {error}")


def say(line: str) -> None:
    """One line on standard error, which slurmd may log, and in the system's log."""
    log.say_to_system(line, "runlist slurm", "runlist-slurm")
