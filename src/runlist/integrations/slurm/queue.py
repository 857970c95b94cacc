"""What Slurm's controller says of jobs and nodes. Only fields are asked for that hold no text of users'."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass

from runlist.errors import RunlistError

PATIENCE_S = 5.0
TRIES = 3
PAUSE_S = 1.0
LIVE = "CONFIGURING,RUNNING,SUSPENDED,STOPPED,RESIZING,SIGNALING,STAGE_OUT,COMPLETING"
"""States of jobs that are, or soon may be, on a node."""

_GRES = re.compile(r"(?:gres[:/])?(gpu|shard)((?:[:=][^:=,(]+)*)(?:\([^)]*\))?", re.ASCII)


class NoAnswer(RunlistError):
    """Slurm's controller cannot be asked; the message is the command's own."""


@dataclass(frozen=True, slots=True)
class Gres:
    """Generic resources of a job or a node: how many whole GPUs and shards."""

    gpus: int = 0
    shards: int = 0


def parse_gres(text: str) -> Gres:
    """`gres:shard:1` and `gpu:a100:2(S:0),shard:8` in the ways that Slurm's versions write them. Where a job asks for
    the same twice, the least counts: it has at least that.
    """
    least: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", text.strip()):
        match = _GRES.fullmatch(part.strip())
        if match is None:
            continue
        last = re.split(r"[:=]", match[2])[-1] if match[2] else ""
        count = int(last) if last.isdecimal() and len(last) < 10 else 1  # a type, or nothing: one
        kind = match[1]
        least[kind] = min(least.get(kind, count), count)
    return Gres(least.get("gpu", 0), least.get("shard", 0))


def sum_gres(text: str) -> Gres:
    """The same of a node, where kinds of GPUs add up."""
    parts = [parse_gres(part) for part in re.split(r",(?![^(]*\))", text.strip())]
    return Gres(sum(part.gpus for part in parts), sum(part.shards for part in parts))


def job_gres(job: int) -> Gres:
    """What a job asked for on each of its nodes. Raises NoAnswer."""
    fields = "JobID:|,tres-per-node:|,tres-per-job:|,tres-per-task:|,tres-per-socket:|"
    for line in _asked("squeue", "-h", "-a", "-t", "all", "-j", str(job), "-O", fields):
        number, *asked = (field.strip() for field in line.split("|"))
        if number == str(job):
            found = [parse_gres(text) for text in asked if text not in ("", "N/A")]
            return Gres(max((one.gpus for one in found), default=0), max((one.shards for one in found), default=0))
    raise NoAnswer(f"squeue knows no job {job}")


def node_gres(node: str) -> Gres:
    """What a node has. Raises NoAnswer."""
    for line in _asked("sinfo", "-h", "-N", "-n", node, "-o", "%G"):
        return sum_gres(line)
    raise NoAnswer(f"sinfo knows no node {node}")


def live_jobs(node: str) -> set[int]:
    """Jobs that are on a node. Raises NoAnswer."""
    lines = _asked("squeue", "-h", "-a", "-t", LIVE, "-w", node, "-o", "%A")
    return {int(line) for line in lines if line.strip().isdecimal()}


def _asked(*words: str) -> list[str]:
    """The lines that a command of Slurm's prints; the controller is given some time to come back."""
    said = ""
    for left in reversed(range(TRIES)):
        try:
            done = subprocess.run(
                words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=PATIENCE_S,
            )  # fmt: skip
            if done.returncode == 0:
                return done.stdout.splitlines()
            said = done.stderr.strip().replace("\n", " ") or f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            said = f"no answer in {PATIENCE_S:.0f} s"
        except OSError as error:
            raise NoAnswer(f"{words[0]} cannot be run: {error.strerror}") from None
        if left:
            time.sleep(PAUSE_S)
    raise NoAnswer(f"{words[0]}: {said}")
