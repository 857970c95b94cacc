"""The GPUs that a command would see, as the driver itself tells, and the part of their SMs that MPS is to give it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runlist import interpreter
from runlist.errors import NotSupportedError, RunlistError, UsageError

_PROBE_S = 120.0  # a server makes a context on each GPU, which takes seconds where nothing keeps the driver loaded
_NOT_READY = "CUDA_ERROR_MPS_SERVER_NOT_READY"
_LOOK_S = 0.1
_PROHIBITED, _EXCLUSIVE = 2, 3  # compute modes
_PERCENT = re.compile(r"(\d{1,3}) ?%", re.ASCII)
_COUNT = re.compile(r"\d{1,5}", re.ASCII)


@dataclass(frozen=True)
class Gpu:
    """A GPU: `sms` is how many of them a program may use."""

    uuid: str
    name: str
    sms: int
    mode: int


class Refused(RunlistError):
    """The driver has no GPU for a program: the message is its error."""


def look(environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs of a program with this environment, in its order; where it is a client of MPS, the server runs then.
    Raises Refused.
    """
    deadline = time.monotonic() + _PROBE_S
    while True:
        try:
            said = subprocess.run(
                interpreter.command("runlist.sharing.probe"), env=dict(environment), cwd="/", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PROBE_S, check=False,
            ).stdout  # fmt: skip
            answer = json.loads(said)
        except subprocess.TimeoutExpired:
            raise Refused(f"the driver does not answer in {_PROBE_S:.0f} s") from None
        except ValueError:
            raise Refused("the driver ended a program that asked it") from None
        error = answer.get("error")
        if error is None:
            return [Gpu(**found) for found in answer["gpus"]]
        if error != _NOT_READY or time.monotonic() > deadline:  # others start it at this moment
            raise Refused(error)
        time.sleep(_LOOK_S)


def check(gpus: Sequence[Gpu]) -> None:
    """Raise NotSupportedError where programs cannot share the SMs of these GPUs."""
    if not gpus:
        raise NotSupportedError("--share sms: there is no GPU that the command could see")
    for gpu in gpus:
        if " MIG " in f"{gpu.name} ":
            raise NotSupportedError(f"--share sms is for whole GPUs, and {gpu.uuid} is in MIG mode: leave --share out")
        if gpu.mode == _PROHIBITED:
            raise NotSupportedError(f"{gpu.uuid} takes no programs: its compute mode is PROHIBITED (nvidia-smi -c)")


def unusable(gpus: Sequence[Gpu], error: Refused) -> RunlistError:
    """Why a client of MPS got none of these GPUs, though a program without it sees them."""
    exclusive = next((gpu for gpu in gpus if gpu.mode == _EXCLUSIVE), None)
    if exclusive is not None:
        return NotSupportedError(
            f"{exclusive.uuid} is in exclusive mode and somebody else has it ({error}): name the pipe folder of that "
            "MPS in CUDA_MPS_PIPE_DIRECTORY, or wait until it is free"
        )
    return NotSupportedError(f"MPS takes no programs here: {error}")


def percent_of(text: str, gpus: Sequence[Gpu]) -> int:
    """The thread percentage for `40%`, or for a number of SMs, which MPS rounds up to what the GPU can have. Raises
    UsageError.
    """
    least = min((gpu.sms for gpu in gpus), default=0)
    percent, count = _PERCENT.fullmatch(text.strip()), _COUNT.fullmatch(text.strip())
    if percent is not None and 1 <= int(percent[1]) <= 100:
        return int(percent[1])
    if count is not None and int(count[0]) >= 1 and (not gpus or int(count[0]) <= least):
        return max(1, 100 * int(count[0]) // least) if gpus else 100
    most = f"1 to {least}" if gpus else "1 or more"
    raise UsageError(f"sms={text[:60]}: take 1% to 100%, or a number of SMs, {most}")
