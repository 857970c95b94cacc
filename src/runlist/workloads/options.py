"""Command-line pieces that the workloads share."""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from runlist.workloads.gpu import GpuError

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def positive(text: str) -> float:
    """A number above zero, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def positive_int(text: str) -> int:
    """A whole number above zero, for argparse."""
    value = positive(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def period_ms(text: str) -> float:
    """A time between arrivals, for argparse: from 10 µs, at which the generator of arrivals ends, to a million s."""
    value = positive(text)
    if not 0.01 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text} ms is no time between arrivals: take 0.01 to 1000000000")
    return value


def part(text: str) -> float:
    """A number from 0 to 1, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every workload."""
    result = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    result.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="which GPU (default 0)")
    result.add_argument(
        "--seconds", type=positive, metavar="S", help="work for S seconds and exit, instead of obeying standard input"
    )
    return result


def add_arrivals(parser: argparse.ArgumentParser, usual_ms: float) -> None:
    """The options of programs that answer requests."""
    add = parser.add_argument
    add("--period-ms", type=period_ms, default=usual_ms, metavar="MS", help=f"time between arrivals ({usual_ms:g})")
    add("--poisson", action="store_true", help="exponential times between arrivals, with that mean")
    add("--jitter", type=part, default=0.0, metavar="PART", help="each arrival late by up to this part of the period")
    add("--report", action="store_true", help="tell Runlist how long each request took, from its arrival on")


def reporter(wanted: bool) -> Callable[[float], None] | None:
    """What a request loop is to tell how long each request took, in seconds."""
    if not wanted:
        return None
    from runlist.tenant import report_latency  # the one thing that a program says to Runlist itself, when asked to

    return report_latency


def load_torch(index: int) -> Any:
    """PyTorch, with GPU `index` as the current one; raises GpuError where either is missing."""
    try:
        import torch
    except ImportError as error:
        raise GpuError("PyTorch is not installed: pip install torch") from error
    if not torch.cuda.is_available():
        raise GpuError("PyTorch sees no GPU here")
    torch.cuda.set_device(index)
    return torch


def allow_management() -> None:
    """Lets every process of this user manage this one where Yama (`ptrace_scope` 1, as on Ubuntu) allows only parents.

    Any other program is started with `runlist run` there. Without Yama the call fails, and is not needed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def main(body: Callable[[], None], name: str) -> None:
    """Runs `body`; a GPU that fails ends the program with one line on standard error and exit code 1."""
    allow_management()
    try:
        body()
    except RuntimeError as error:  # GpuError, and PyTorch's own
        sys.exit(f"{name}: {str(error).splitlines()[0]}")
    except BrokenPipeError:  # whoever measured is gone
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
