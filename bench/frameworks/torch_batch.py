"""Batch programs in PyTorch: products of matrices, and the training of BERT-large."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bench.frameworks import served
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
    """A step of training with AdamW, bf16 by autocast, random words and weights; then a wait."""
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    on_gpu = arguments.device == "cuda"
    layers, width, batch, length = (LAYERS, WIDTH, BATCH, LENGTH) if on_gpu else (2, 64, 2, 16)
    with torch.device(arguments.device):
        model, forward = _bert(torch, layers, width)
        words = torch.randint(0, WORDS, (batch, length))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu)
    losses: list[Any] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(arguments.device, torch.bfloat16):
            loss = forward(words).float().square().mean()
        loss.backward()
        optimizer.step()
        losses[:] = [loss.detach()]
        wait()

    for _ in range(3):
        step()
    served.bursts(step, 1, lambda: finite(torch, *losses))


def _bert(torch: Any, layers: int, width: int) -> tuple[Any, Callable[[Any], Any]]:
    """A model, and what takes (batch, length) words to (batch, length, width): that of transformers, where it is
    installed, else PyTorch's own encoder of the same size.
    """
    try:
        import transformers
    except ImportError:
        layer = torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, activation="gelu", batch_first=True)
        body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        encoder = torch.nn.Sequential(torch.nn.Embedding(WORDS, width), body)
        return encoder, encoder
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=HEADS,
        intermediate_size=4 * width,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False)
    return model, lambda words: model(input_ids=words).last_hidden_state


if __name__ == "__main__":
    served.serve({"matmul": _matmul, "bert-large": _bert_large}, __doc__)
