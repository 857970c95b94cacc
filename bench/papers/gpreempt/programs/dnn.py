"""Inference of one input by a network with random weights: VGG19, ResNet-152, DenseNet-201, Inception-v3, DistilBERT.

With --blocks it lets others in between two layers: the kernels of libraries cannot be stopped between their blocks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from bench.papers.common.modules import load, own_stream
from bench.papers.common.programs import serving
from bench.papers.gpreempt.between import Between, Wait
from bench.papers.gpreempt.networks import NETWORKS
from runlist.blocks.page import Page
from runlist.errors import UsageError
from runlist.workloads import options as workload_options

_INPUTS = 16
"""Different ones; request n has that of n modulo this."""
_WARM_UPS = 3
_PRECISIONS = {"fp32": "float32", "fp16": "float16"}


class Inference(serving.Hinted):
    """Copies an input in from page-locked memory, and the result out to it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._torch = torch = load("torch")
        self._gpu = options.device == "cuda"
        if options.graph and options.blocks is not None and not options.urgent:
            raise UsageError("a CUDA graph is one piece of work, with no layers to stop between: leave out --graph")
        self._stream: Any
        self._aside: Any
        self._stream, self._aside = self._streams(options) if self._gpu else (None, None)
        torch.set_num_threads(1)  # else an input is prepared by as many threads as cores, which other programs' spin on
        torch.backends.cudnn.benchmark = False  # what it chooses would depend on what else runs now
        torch.backends.cudnn.deterministic = True
        network = NETWORKS[options.network]
        size = options.size or (network.size if self._gpu else network.least)
        kind = getattr(torch, _PRECISIONS[options.precision])
        self._network = network.made(torch, options.seed).to(options.device, kind)
        generator = torch.Generator().manual_seed(options.seed)
        inputs = [network.given(torch, size, generator) for _ in range(_INPUTS)]
        self._inputs = inputs if network.words else [each.to(kind) for each in inputs]
        self._from = torch.empty_like(self._inputs[0], pin_memory=self._gpu)
        self._given = torch.empty_like(self._from, device=options.device)
        self._which = 0
        self._seen: dict[int, str] = {}
        self._right = True
        self._between: Between | None = None
        self._replay: Callable[[], None] | None = None
        self._make_ready(graph=options.graph)
        if options.blocks is not None and not options.urgent:
            self._stop_between_layers(Page(options.blocks))
        layers = () if options.graph else ("blocks",)
        self.ways = frozenset(("hint", *layers) if self._gpu else layers)
        self._facts = {
            "repeats": True,
            "network": options.network,
            "parameters": sum(each.numel() for each in self._network.parameters()),
            "input": list(self._given.shape),
            "precision": options.precision,
            "graph": options.graph,
            "stops": "between layers" if self._between is not None else None,
            "device": torch.cuda.get_device_name() if self._gpu else "cpu",
            **{name: load(name).__version__ for name in ("torch", *network.modules)},
        }

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream) if self._gpu else 0

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def prepare(self, request: int) -> None:
        self._which = request % _INPUTS
        self._from.copy_(self._inputs[self._which])

    def copy_input(self) -> None:
        self._given.copy_(self._from, non_blocking=True)

    def copy_input_aside(self) -> None:
        with self._torch.cuda.stream(self._aside):
            self.copy_input()
        self._aside.synchronize()

    def infer(self) -> None:
        if self._between is not None:
            self._between.begin()
        if self._replay is not None:
            self._replay()
        else:
            self._result = self._forward()

    def copy_output(self) -> None:
        self._to.copy_(self._result, non_blocking=True)

    def synchronize(self) -> None:
        if self._between is not None:
            self._between.end()
        else:
            self._wait()

    def check(self) -> str | None:
        """Also compares it with what the same input gave before."""
        digest = hashlib.sha256(self._to.numpy()).hexdigest()[:16]
        finite = bool(self._torch.isfinite(self._to).all())
        self._right &= finite and self._seen.setdefault(self._which, digest) == digest
        return digest

    def correct(self) -> bool:
        return self._right

    def _streams(self, options: argparse.Namespace) -> tuple[Any, Any]:
        """Its own, and another."""
        stream = own_stream(self._torch, options.gpu, options.priority)
        return stream, self._torch.cuda.Stream()

    def _make_ready(self, *, graph: bool) -> None:
        """Run it a few times, as it is then run; `graph` makes one of it."""
        self.prepare(0)
        self.copy_input()
        for _ in range(_WARM_UPS if self._gpu else 1):
            self._result = self._forward()
        self._wait()
        if graph and self._gpu:
            captured = self._torch.cuda.CUDAGraph()
            with self._torch.cuda.graph(captured, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._forward()
            self._replay = captured.replay
            self._replay()
        self._to = self._torch.empty_like(self._result, device="cpu", pin_memory=self._gpu)
        self.copy_output()
        self._wait()

    def _forward(self) -> Any:
        with self._torch.inference_mode():
            return self._network(self._given)

    def _wait(self) -> None:
        if self._gpu:
            self._stream.synchronize()

    def _stop_between_layers(self, page: Page) -> None:
        between = self._between = Between(page, self._mark, self._wait)
        for layer in self._network.modules():
            if not any(layer.children()):
                layer.register_forward_pre_hook(lambda *_: between.step())

    def _mark(self) -> Wait:
        if not self._gpu:
            return lambda: None  # a processor has done it by then
        event = self._torch.cuda.Event()
        event.record()
        wait: Wait = event.synchronize
        return wait


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("network", choices=sorted(NETWORKS))
    add("--graph", action="store_true", help="as one CUDA graph, instead of kernel by kernel")
    add("--precision", choices=sorted(_PRECISIONS), default="fp32", help="of weights and inputs (fp32)")
    add("--size", type=workload_options.positive_int, metavar="N",
        help="pixels of a side, or words (the network's own; without a GPU, few)")  # fmt: skip
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying it (cuda)")


if __name__ == "__main__":
    serving.main(Inference, __doc__, _add_options)
