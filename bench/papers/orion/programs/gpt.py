"""A transformer with random weights: a forward pass over words that are there, steps of decoding, or steps of training.

Decoding reads all weights for each token, and the memory bounds it; training and the forward pass are products of large
matrices, and the SMs bound them. All of it kernel by kernel, since what is scheduled is single operations; decoding can
be a CUDA graph a token as well, which the processor does not hold up.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.frameworks.decode import Decoder
from bench.papers.common.programs import serving
from bench.papers.orion.programs.tensors import WORDS, TensorProgram, add_device
from runlist.errors import UsageError
from runlist.workloads import options as workload_options

FORWARD, DECODE, TRAIN = "forward", "decode", "train"
LAYERS, WIDTH, HEADS, BATCH, LENGTH = 12, 1024, 16, 8, 512
SMALL = 2, 64, 4, 2, 16
"""The same where there is no GPU."""

RATE = 1e-3
PERIOD = 100
"""Steps of training after which the weights are again what they were: a request's result is known by its number."""


class Gpt(TensorProgram):
    """Single precision for results that are compared bit for bit; products may use TF32."""

    def __init__(self, options: argparse.Namespace) -> None:
        sizes = (LAYERS, WIDTH, HEADS, BATCH, LENGTH) if options.device == "cuda" else SMALL
        self._layers, self._width, self._heads, self._batch, self._length = sizes
        super().__init__(options, self._batch * self._length, "words")
        self.torch.backends.cuda.matmul.allow_tf32 = True
        self._mode, self._tokens = options.mode, options.tokens
        self._decoder: Any = None
        if self._mode == DECODE:
            self.torch.manual_seed(options.seed)
            self._decoder = Decoder(self.torch, options.device)
            self._step = self._decoder.step
        else:
            self._weights = self._made()
            self._at_first = [each.clone() for each in self._weights] if self._mode == TRAIN else []
            for each in self._weights:
                each.requires_grad_(self._mode == TRAIN)
        self._result: Any = None
        self.warm(3)
        if options.graph:
            self._capture()

    def infer(self) -> None:
        if self._mode == DECODE:
            self._decode()
        elif self._mode == TRAIN:
            self._train()
        else:
            with self.torch.inference_mode():
                self._result = self._forward(self.given.view(self._batch, self._length))

    def check(self) -> str | None:
        return self.digest(self._result)

    def _decode(self) -> None:
        self._decoder.token.copy_(self.given[:1])
        for _ in range(self._tokens):
            self._result = self._step()

    def _capture(self) -> None:
        """Have a step be one launch. In a process of several programs others go on meanwhile."""
        if self._mode != DECODE or not self.on_gpu:
            raise UsageError("--graph is for decoding on a GPU")
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.own_stream, capture_error_mode="thread_local"):
            scores = self._decoder.step()

        def replayed() -> Any:
            graph.replay()
            return scores

        self._step = replayed
        self.warm(1)

    def _train(self) -> None:
        torch = self.torch
        with torch.no_grad():
            if self.request % PERIOD == 0:
                for weight, first in zip(self._weights, self._at_first, strict=True):
                    weight.copy_(first)
        loss = self._forward(self.given.view(self._batch, self._length)).square().mean()
        gradients = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.sub_(gradient, alpha=RATE)
        self._result = loss.detach()

    def _made(self) -> list[Any]:
        """Words, and for each layer: into queries, keys and values, back, wide, narrow."""
        width = self._width
        shapes = [(WORDS, width)]
        for _ in range(self._layers):
            shapes += [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
        return [self.random(*shape, scale=shape[1] ** -0.5) for shape in shapes]

    def _forward(self, words: Any) -> Any:
        """What the last layer says of each word, (batch, length, width). Attention is written out: the quick kernels
        for it add up in no fixed order when they go backward.
        """
        torch, functional = self.torch, self.torch.nn.functional
        batch, length = words.shape
        embedding, *layers = self._weights
        hidden = functional.embedding(words, embedding)
        unseen = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)
        for layer in range(self._layers):
            mixing, joining, widening, narrowing = layers[4 * layer : 4 * layer + 4]
            mixed = functional.linear(functional.layer_norm(hidden, (self._width,)), mixing)
            query, key, value = mixed.view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            seen = scores.masked_fill(unseen, float("-inf")).softmax(-1) @ value
            hidden = hidden + functional.linear(seen.transpose(1, 2).reshape(batch, length, -1), joining)
            wide = functional.linear(functional.layer_norm(hidden, (self._width,)), widening)
            hidden = hidden + functional.linear(functional.gelu(wide), narrowing)
        return hidden


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("mode", choices=(FORWARD, DECODE, TRAIN))
    add("--tokens", type=workload_options.positive_int, default=4, metavar="N", help="that decoding adds a request (4)")
    add("--graph", action="store_true", help="decode by a CUDA graph a token")
    add_device(parser)


if __name__ == "__main__":
    serving.main(Gpt, __doc__, _add_options)
