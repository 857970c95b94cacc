"""Kernels made resumable: a text of CUDA C++, or a kernel of CuPy's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runlist.blocks import source
from runlist.blocks.device import Device, Dim, Function
from runlist.blocks.page import Page
from runlist.blocks.sequence import BLPExecutor
from runlist.errors import UsageError


class Resumable:
    """A kernel that takes its logical blocks in turn; `function` is what a BLPExecutor adds."""

    def __init__(self, device: Device, function: Function) -> None:
        self.device = device
        self.function = function
        self.name = function.name

    def launch(
        self,
        grid: Dim,
        block: Dim,
        arguments: Sequence[Any],
        *,
        shared: int = 0,
        physical: int | None = None,
        page: str | Path | Page | None = None,
        anew: bool = False,
    ) -> BLPExecutor:
        """Queues it, as a sequence of one, which has `wait`, `stop`, `save`, `resume`. Closing that (`with` does so)
        gives back its place among those that the page may stop.
        """
        executor = BLPExecutor(self.device, page, anew=anew)
        try:
            executor.add(self.function, grid, block, arguments, shared=shared, physical=physical)
            executor.start()
        except BaseException:
            executor.close()
            raise
        return executor


def resumable(
    kernel: Any, name: str | None = None, *, device: Device | None = None, options: Sequence[str] = ()
) -> Resumable:
    """A kernel that can be stopped between blocks, made of a text of CUDA C++ (`name` says which kernel, if it has
    several) or of a `cupy.RawKernel`, whose arguments are then as CuPy takes them.

    Raises UsageError for a kernel that cannot be stopped so; the message names the line.
    """
    if isinstance(kernel, str):
        text, chosen = kernel, device or _cuda()
    elif isinstance(code := getattr(kernel, "code", None), str) and isinstance(
        named := getattr(kernel, "name", None), str
    ):
        text, name, options = code, named, (*getattr(kernel, "options", ()), *options)
        chosen = device or _cupy()
    else:
        raise UsageError(f"{kernel!r} is no text of CUDA C++ and no cupy.RawKernel")
    known = [each.name for each in source.kernels(text)]
    if name is None:
        if len(known) != 1:
            several = f"{len(known)} kernels: name one of {', '.join(known)}"
            raise UsageError(f"the text has {several if known else 'no kernel: a function that is __global__ void'}")
        name = known[0]
    made = chosen.compile(source.resumable(text, [name]), f"{name}.cu", options)
    return Resumable(chosen, made.function(name))


def _cuda() -> Device:
    from runlist.blocks.driver import Cuda

    return Cuda()


def _cupy() -> Device:
    from runlist.blocks.of_cupy import Cupy

    return Cupy()
