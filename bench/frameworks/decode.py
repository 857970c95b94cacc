"""A step of decoding with a transformer in PyTorch: one token, batch 1, with a cache of those before it."""

from __future__ import annotations

from typing import Any

LAYERS, WIDTH, HEADS, CACHED, WORDS = 16, 2048, 16, 512, 32_000


class Decoder:
    """Weights and cache in bf16; small where the device is no GPU. `step` takes the last token, and leaves the next one
    in its place.
    """

    def __init__(self, torch: Any, device: str) -> None:
        layers, width = (LAYERS, WIDTH) if device == "cuda" else (2, 256)
        self._torch = torch
        self._width = width
        self._layers = layers

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device=device, dtype=torch.bfloat16) * shape[-1] ** -0.5

        self._mixing = [random(3 * width, width) for _ in range(layers)]
        self._joining = [random(width, width) for _ in range(layers)]
        self._widening = [random(4 * width, width) for _ in range(layers)]
        self._narrowing = [random(width, 4 * width) for _ in range(layers)]
        cache = (1, HEADS, CACHED, width // HEADS)
        self._keys, self._values = ([random(*cache) for _ in range(layers)] for _ in range(2))
        self._words = random(WORDS, width)
        self._scale = torch.ones(width, device=device, dtype=torch.bfloat16)
        self.token = torch.zeros(1, dtype=torch.long, device=device)

    def step(self) -> Any:
        """The scores of all words after the last token, (1, WORDS)."""
        with self._torch.inference_mode():
            return self._step()

    def _step(self) -> Any:
        functional = self._torch.nn.functional
        hidden = self._words[self.token]
        for layer in range(self._layers):
            query, key, value = functional.linear(self._normal(hidden), self._mixing[layer]).view(3, 1, HEADS, 1, -1)
            keys, values = self._keys[layer], self._values[layer]
            keys[:, :, -1:], values[:, :, -1:] = key, value
            seen = functional.scaled_dot_product_attention(query, keys, values)
            hidden = hidden + functional.linear(seen.reshape(1, self._width), self._joining[layer])
            wide = functional.gelu(functional.linear(self._normal(hidden), self._widening[layer]))
            hidden = hidden + functional.linear(wide, self._narrowing[layer])
        scores = functional.linear(self._normal(hidden), self._words)
        self.token.copy_(scores.argmax(-1))
        return scores

    def _normal(self, hidden: Any) -> Any:
        return self._torch.nn.functional.layer_norm(hidden, (self._width,), self._scale)
