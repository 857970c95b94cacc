"""The programs of the benchmark `pairs`, and what is said of them on a command line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.frameworks import ranks
from bench.harness import library
from bench.harness.benchmark import Needs
from runlist import interpreter
from runlist.workloads.batch import KERNEL_MS

LOAD = 0.35
"""Of the time of one request alone: the part of all time that requests take, unless a program says another."""


PREPARED_LOAD = 0.09
"""Of programs that prepare their requests: 80 requests of 1.1 ms a second."""


@dataclass(frozen=True)
class Program:
    """A program by its module and arguments. A workload of Runlist (`workload`) first measures how many rounds its
    kernel needs, and says so; others of the same are given them. `gpu_us` is the GPU time of a request, where that is
    known beforehand; `tells_gpu_time`, whether the program can measure it.
    """

    name: str
    words: tuple[str, ...]
    workload: bool = False
    modules: tuple[str, ...] = ()
    load: float | None = None
    gpu_us: float | None = None
    tells_gpu_time: bool = False
    gpus: int = 1

    def command(self, *arguments: str) -> list[str]:
        """The words that start it."""
        if self.workload:
            return interpreter.command(*self.words, *arguments)
        return [sys.executable, "-m", *self.words, *arguments]

    def missing(self, device: str, gpus: int) -> str:
        """What is not here, on this device with so many GPUs; empty when all is."""
        return Needs(gpus=self.gpus, modules=self.modules).missing(device, gpus)


@dataclass(frozen=True)
class Pair:
    """A latency program beside so many of a batch program."""

    latency: str
    batch: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.latency}+{self.batch}" + (f"*{self.count}" if self.count > 1 else "")


def _spinning(name: str, steps: int, kernel_us: float, *options: str, load: float | None = None) -> Program:
    words = ("runlist.workloads.latency", "--jitter", "0.5", "--kernel-us", f"{kernel_us:g}", "--steps", str(steps))
    return Program(name, (*words, *options), workload=True, load=load, gpu_us=steps * kernel_us)


def _served(
    name: str, module: str, *modules: str, load: float | None = None, tells_gpu_time: bool = True, gpus: int = 1
) -> Program:
    words = (f"bench.frameworks.{module}", name)
    return Program(name, words, modules=modules, load=load, tells_gpu_time=tells_gpu_time, gpus=gpus)


def _bursts(name: str, kernel_ms: float, burst: int) -> Program:
    words = ("runlist.workloads.batch", "--kernel-ms", f"{kernel_ms:g}", "--burst", str(burst))
    return Program(name, words, workload=True)


def _named(*programs: Program) -> dict[str, Program]:
    return {one.name: one for one in programs}


_KERNEL = _spinning(
    "kernel", 1, 80, load=80 / 3000
)  # every 3 ms: a request beside a batch job takes longer than itself
_SMALL = _bursts("small-kernels", 0.02, 200)

PROGRAMS: Mapping[str, Mapping[str, Program]] = {
    "nvidia": _named(
        _KERNEL,
        _served("graph", "torch_latency", "torch"),
        _served("prepared-graph", "torch_latency", "torch", load=PREPARED_LOAD),
        _served("hinted-graph", "torch_latency", "torch", load=PREPARED_LOAD),
        _served("token-loop", "torch_latency", "torch"),
        _served("eager-llm", "llm_latency", "torch", "transformers", load=0.4),
        _served("resnet", "torch_latency", "torch"),
        _served("compiled", "torch_latency", "torch", "triton"),
        _served("jax", "jax_latency", "jax", tells_gpu_time=False),
        _served("jax-short", "jax_latency", "jax", tells_gpu_time=False),
        _served("lookup", "torch_latency", "torch"),
        _served("fft", "cupy_latency", "cupy", tells_gpu_time=False),
        _served("http", "http_latency", "torch", "aiohttp"),
        _served("matmul", "torch_batch", "torch", tells_gpu_time=False),
        _served("bert-large", "torch_batch", "torch", tells_gpu_time=False),
        _served("data-parallel", "torch_batch", "torch", tells_gpu_time=False, gpus=ranks.COUNT),
        _SMALL,
    ),
    "emulated": _named(
        _KERNEL,
        _spinning("prepared-graph", 1, 1000, "--prepare-us", "2000", load=PREPARED_LOAD),
        _spinning("hinted-graph", 1, 1000, "--say-us", "2000", load=PREPARED_LOAD),
        _spinning("token-loop", 8, 1000, "--gap-us", "30"),
        _spinning("eager-llm", 20, 50, "--host-us", "500", load=0.6),
        _bursts("matmul", KERNEL_MS, 4),
        _SMALL,
    ),
}
"""By device. Kernels that spin stand for some of the programs on the emulated GPU."""

LATENCY = (
    "kernel",
    "graph",
    "prepared-graph",
    "hinted-graph",
    "token-loop",
    "eager-llm",
    "resnet",
    "compiled",
    "jax",
    "jax-short",
    "lookup",
    "fft",
    "http",
)
BATCH = ("matmul", "bert-large", "data-parallel", "small-kernels")

PAIRS: Mapping[str, str] = {
    "nvidia": "token-loop+matmul,eager-llm+matmul,resnet+matmul,graph+matmul,prepared-graph+matmul,hinted-graph+matmul,"
    "http+matmul,kernel+matmul,compiled+matmul,jax+matmul,jax-short+matmul,lookup+matmul,fft+matmul,"
    "token-loop+bert-large,token-loop+small-kernels,token-loop+matmul*8,"
    "graph+data-parallel",
    "emulated": "token-loop+matmul,eager-llm+matmul,kernel+matmul,prepared-graph+matmul,hinted-graph+matmul",
}

ALONE, DEFAULT, MPS, RUNLIST = "alone", "default", "mps", "runlist"
CONFIGURATIONS = f"{ALONE},{DEFAULT},{MPS},{RUNLIST}"

_PAIR = re.compile(r"(?P<latency>[a-z-]+)\+(?P<batch>[a-z-]+)(\*(?P<count>[1-9][0-9]?))?")


def pairs(text: str) -> list[Pair]:
    """Pairs as they are written: `LATENCY+BATCH` or `LATENCY+BATCH*COUNT`, by commas. Raises ValueError."""
    found = []
    for word in text.split(","):
        match = _PAIR.fullmatch(word.strip())
        if match is None or match["latency"] not in LATENCY or match["batch"] not in BATCH:
            raise ValueError(
                f"{word!r} is no pair: write LATENCY+BATCH or LATENCY+BATCH*COUNT, with LATENCY of "
                f"{', '.join(LATENCY)} and BATCH of {', '.join(BATCH)}"
            )
        found.append(Pair(match["latency"], match["batch"], int(match["count"] or 1)))
    return found


def configurations(text: str) -> dict[str, dict[str, str]]:
    """Configurations as they are written, by commas, and the options of the policy in each: `runlist:NAME=VALUE`, more
    of them by `+`. `alone` comes first, whether or not it is named. Raises ValueError.
    """
    found: dict[str, dict[str, str]] = {ALONE: {}}
    for word in map(str.strip, text.split(",")):
        name, _, rest = word.partition(":")
        options = [option.partition("=") for option in rest.split("+")] if rest else []
        if name not in (ALONE, DEFAULT, MPS, RUNLIST) or (options and name != RUNLIST):
            raise ValueError(f"{word!r} is no configuration: take {CONFIGURATIONS}, or {RUNLIST}:OPTION=VALUE")
        if not all(key and equals and value for key, equals, value in options):
            raise ValueError(f"{word!r}: write an option of the policy as {RUNLIST}:OPTION=VALUE")
        found[word] = {key: value for key, _, value in options}
    return found


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """For argparse: the text itself, if it can be parsed."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def environment() -> dict[str, str]:
    """A program's whole environment, without the library. It works in another folder than we do."""
    clean = library.without()
    folders = filter(None, clean["PYTHONPATH"].split(os.pathsep))
    return {**clean, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders))}
