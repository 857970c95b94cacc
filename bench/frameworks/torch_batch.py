"""Batch programs in PyTorch: products of matrices, and the training of BERT-large on one GPU or on two."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bench.frameworks import ranks, served
from bench.frameworks.torch_tools import finite, torch_of, waiter

SIZE, BURST = 8192, 4
BATCH, LENGTH, WORDS = 32, 256, 30_522
"""Of a step of training, which then takes some 50 ms on an H100."""

LAYERS, WIDTH, HEADS = 24, 1024, 16


def _matmul(arguments: argparse.Namespace) -> None:
    """Four products in bf16, then a wait."""
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    size = SIZE if arguments.device == "cuda" else 64
    a, b = (torch.randn(size, size, device=arguments.device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)

    def burst() -> None:
        for _ in range(BURST):
            torch.mm(a, b, out=product)
        wait()

    burst()
    served.bursts(burst, BURST, lambda: finite(torch, product))


def _bert_large(arguments: argparse.Namespace) -> None:
    """A step of training, then a wait."""
    torch = torch_of(arguments.device)
    _serve(_Training(torch, arguments.device), lambda: None)


def _data_parallel(arguments: argparse.Namespace) -> None:
    """The same on each of two GPUs, in a process of its own, with their gradients added up by NCCL."""
    torch = torch_of(arguments.device)

    def training() -> _Training:
        return _Training(torch, arguments.device, torch.nn.parallel.DistributedDataParallel)

    if ranks.is_second():
        orders = ranks.following()
        second = training()
        for _ in orders:
            second.step()
    else:
        with ranks.leading("-m", "bench.frameworks.torch_batch", arguments.program) as order:
            _serve(training(), order)


def _serve(training: _Training, order: Callable[[], None]) -> None:
    def step() -> None:
        order()
        training.step()

    for _ in range(3):
        step()
    served.bursts(step, 1, training.correct)


class _Training:
    """Of BERT-large with AdamW, bf16 by autocast, random words and weights. `wrap` makes another model of the model."""

    def __init__(self, torch: Any, device: str, wrap: Callable[[Any], Any] = lambda model: model) -> None:
        self._torch = torch
        self._device = device
        self._wait = waiter(torch, device)
        on_gpu = device == "cuda"
        layers, width, batch, length = (LAYERS, WIDTH, BATCH, LENGTH) if on_gpu else (2, 64, 2, 16)
        with torch.device(device):
            model, self._hidden = _bert(torch, layers, width)
            self._model = wrap(model)
            self._words = torch.randint(0, WORDS, (batch, length))
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=on_gpu)
        self._loss: Any = None

    def step(self) -> None:
        """One step, and a wait for its end."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._torch.autocast(self._device, self._torch.bfloat16):
            loss = self._hidden(self._model(self._words)).float().square().mean()
        loss.backward()
        self._optimizer.step()
        self._loss = loss.detach()
        self._wait()

    def correct(self) -> bool:
        """Whether the loss is still a number."""
        return finite(self._torch, self._loss)


def _bert(torch: Any, layers: int, width: int) -> tuple[Any, Callable[[Any], Any]]:
    """A model that takes (batch, length) words, and what has (batch, length, width) of what it returns: that of
    transformers, where it is installed, else PyTorch's own encoder of the same size.
    """
    try:
        import transformers
    except ImportError:
        layer = torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, activation="gelu", batch_first=True)
        body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        return torch.nn.Sequential(torch.nn.Embedding(WORDS, width), body), lambda output: output
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=HEADS,
        intermediate_size=4 * width,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False), lambda output: output.last_hidden_state


if __name__ == "__main__":
    served.serve({"matmul": _matmul, "bert-large": _bert_large, "data-parallel": _data_parallel}, __doc__)
