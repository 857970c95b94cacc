"""`runlist demo` from its options to its exit code."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from runlist.client import Client
from runlist.demo import picture, report
from runlist.demo.device import EMULATED, Device, use_device
from runlist.demo.measure import Bench, Plan
from runlist.demo.noise import busy
from runlist.demo.result import Result
from runlist.errors import NoTargetError, NotSupportedError, RunlistError, UsageError
from runlist.workloads.process import WorkloadError, WorkloadProcess

_INTERRUPTED = 130
_QUIETER = "; try again when less runs, or measure longer (--seconds)"
_WITHOUT_PICTURE = "no picture: pip install 'runlist[plot]' draws one"


@dataclass(frozen=True)
class DemoOptions:
    """What `runlist demo` was asked for."""

    seconds: float = 24.0
    """Measuring time in all."""
    torch: bool = False
    out: Path | None = None
    """Where the picture goes; None: none is drawn, and nothing that draws is needed."""
    device: str | None = None
    json: bool = False


@dataclass(frozen=True)
class _Programs:
    """The two programs that share the GPU: modules of runlist.workloads."""

    latency: str
    batch: str
    title: str


_KERNELS = _Programs("latency", "batch", "80 µs kernel every 3 ms (LC) against 3.2 ms kernels (BE)")
_TORCH = _Programs("torch_latency", "torch_batch", "transformer every 5 ms (LC) against matrix products (BE)")


def run(options: DemoOptions) -> int:
    """Runs the demo; returns the exit code. Raises RunlistError for what stops it; all is put back in any case."""
    console = Console(stderr=True)
    try:
        return _run(options, console)
    except KeyboardInterrupt:
        console.print("interrupted: everything is put back", highlight=False, soft_wrap=True)
        return _INTERRUPTED
    except WorkloadError as error:
        raise RunlistError(str(error)) from None


def _run(options: DemoOptions, console: Console) -> int:
    if not 1 <= options.seconds < float("inf"):
        raise UsageError(f"--seconds {options.seconds:g}: at least 1")
    if options.out is not None and options.out.is_dir():
        raise UsageError(f"--out {options.out}: is a directory; name a file")
    others = busy()
    with use_device(options.device) as device:
        console.print(f"device: {device.name} ({device.reason})", highlight=False, soft_wrap=True)
        programs = _TORCH if options.torch else _KERNELS
        if options.torch:
            _require_torch(device)
        result, samples = _measure(options, programs, device, console, others)
    failure = None
    if options.out is not None:
        try:
            picture.save(picture.draw(samples, f"{result.workload}\non {result.gpu}"), options.out)
            result = msgspec.structs.replace(result, picture=str(options.out))
        except RunlistError as error:
            failure = error
    _print(result, options.json)
    if options.out is None:
        console.print(_WITHOUT_PICTURE, highlight=False, soft_wrap=True, markup=False)
    if result.noise:
        reasons = "; ".join(result.noise)
        console.print(f"too noisy here to show anything: {reasons}{_QUIETER}", highlight=False, soft_wrap=True)
    if failure is not None:
        raise failure
    if not result.correct:
        raise RunlistError("a program computed wrong results: please report this with `runlist doctor --json`")
    return 0


def _measure(
    options: DemoOptions, programs: _Programs, device: Device, console: Console, others: float
) -> tuple[Result, dict[str, list[float]]]:
    """What came out, and the latencies of each configuration in µs."""
    plan = Plan.of(options.seconds)
    with contextlib.ExitStack() as stack:
        console.print("starting both programs", highlight=False, soft_wrap=True)
        # One after the other: each measures how long its kernels must be while it is alone.
        latency = stack.enter_context(WorkloadProcess(programs.latency))
        batch = stack.enter_context(WorkloadProcess(programs.batch))
        bench = Bench(latency, batch, stack.enter_context(_daemon(device)), others)
        with report.progress(console, plan) as on_window:
            bench.measure(plan, on_window)
        result = bench.result(device.name, programs.title)
    return result, {name: configuration.latency_us for name, configuration in bench.samples.items()}


@contextlib.contextmanager
def _daemon(device: Device) -> Iterator[Callable[[], Client]]:
    """How to connect to the daemon of `device`: the one that runs, or one of our own that ends with the demo."""
    connect = functools.partial(Client.open, device=device.name)
    try:
        connect().close()
        own = False
    except NoTargetError:
        Client.open(start=True, device=device.name).close()
        own = True
    try:
        yield connect
    finally:
        if own:
            with contextlib.suppress(RunlistError), connect() as client:
                client.stop()


def _require_torch(device: Device) -> None:
    if device.name == EMULATED:
        raise NotSupportedError("--torch needs an NVIDIA GPU: the emulated one runs only Runlist's own kernels")
    if importlib.util.find_spec("torch") is None:
        raise NotSupportedError("--torch needs PyTorch: pip install torch")


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
        return
    console = Console()
    console.print(report.table(result))
    if result.picture:
        console.print(f"picture: {result.picture}", highlight=False, soft_wrap=True)
