"""PyTorch: training and inference of a small transformer, and a decode loop as a CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: PyTorch's condition for determinism

import torch

from bench.frameworks.part import Part, run

LAYERS, WIDTH, HEADS, WORDS, LENGTH, BATCH = 6, 768, 12, 8192, 256, 16
TRAINING_STEPS, DECODED = 10, 64


def _network() -> Any:
    """A transformer that tells the next word at every place: (batch, length) words to (batch, length, WORDS) scores."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    body = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), body, torch.nn.Linear(WIDTH, WORDS)).cuda()


def _batch(generator: Any) -> Any:
    return torch.randint(0, WORDS, (BATCH, LENGTH + 1), device="cuda", generator=generator)


def _generator() -> Any:
    return torch.Generator(device="cuda").manual_seed(1)


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.detach().float().contiguous().cpu().numpy().tobytes())


class _Training:
    """A model, its optimiser, and the data, all from a fixed start."""

    def __init__(self) -> None:
        self.model = _network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self.generator = _generator()

    def step(self) -> Any:
        """One step of training; the loss."""
        words = _batch(self.generator)
        with torch.autocast("cuda", torch.bfloat16):
            scores = self.model(words[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), words[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def _training() -> Part:
    timed = _Training()

    def result() -> bytes:
        fresh = _Training()
        losses = torch.stack([fresh.step() for _ in range(TRAINING_STEPS)])
        return _bytes(losses) + b"".join(_bytes(each) for each in fresh.model.parameters())

    def step() -> None:
        timed.step()
        torch.cuda.synchronize()

    return Part(result, step)


def _inference() -> Part:
    model, words = _network().half().eval(), _batch(_generator())[:, :-1]

    def step() -> Any:
        with torch.no_grad():
            scores = model(words)
        torch.cuda.synchronize()
        return scores

    return Part(lambda: _bytes(step()), step)


def _decode() -> Part:
    """The next word again and again, each one replay of a CUDA graph."""
    model = _network().eval()  # in single precision: equal scores are common in half, and argmax may take either
    words = torch.zeros((1, LENGTH), dtype=torch.long, device="cuda")

    def advance() -> None:
        following = model(words)[:, -1].argmax(-1, keepdim=True)
        words.copy_(torch.cat((words[:, 1:], following), 1))

    with torch.no_grad():
        side = torch.cuda.Stream()  # a capture wants its warm-up on another stream than the default
        with torch.cuda.stream(side):
            for _ in range(3):
                advance()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            advance()

    def step() -> Any:
        words.copy_(torch.arange(LENGTH, device="cuda")[None])
        for _ in range(DECODED):
            graph.replay()
        torch.cuda.synchronize()
        return words

    return Part(lambda: _bytes(step()), step)


def _facts() -> Mapping[str, Any]:
    unused, total = torch.cuda.mem_get_info()
    return {
        "total": total,
        "free": unused,
        "properties": torch.cuda.get_device_properties(0).total_memory,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward pass is not deterministic
    torch.backends.cuda.enable_flash_sdp(False)
    run({"training": _training, "inference": _inference, "decode": _decode}, _facts)
