"""A latency program with transformers: a Llama of 1.2 billion parameters generates 16 tokens, eager, batch 1."""

from __future__ import annotations

import argparse
import time
from typing import Any

from bench.frameworks import served
from bench.frameworks.torch_tools import gpu_time, torch_of, waiter

PROMPT, TOKENS, WORDS = 16, 16, 128_256
SIZE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}  # fmt: skip
"""For a device that is no GPU."""


def _generate(arguments: argparse.Namespace) -> None:
    """Random weights; the host takes far longer for a token than the GPU."""
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    transformers = served.load("transformers")
    size = SIZE if arguments.device == "cuda" else SMALL
    config = transformers.LlamaConfig(
        vocab_size=WORDS, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0, **size
    )
    with torch.device(arguments.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
        prompt = torch.randint(1, WORDS, (1, PROMPT))
        mask = torch.ones_like(prompt)
    if arguments.device == "cuda":
        torch.cuda.empty_cache()  # it was made in single precision
    results: list[Any] = []

    def generate() -> None:
        with torch.inference_mode():
            results[:] = [model.generate(prompt, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)]

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        generate()
        wait()
        return began

    def one_token() -> None:
        with torch.inference_mode():
            model(prompt[:, :1], use_cache=True)

    def correct() -> bool:
        return bool(results) and tuple(results[0].shape) == (1, PROMPT + TOKENS)

    for _ in range(2):
        request(0.0)
    # Generating waits for each token, and cannot be queued: as many steps of one token stand for it.
    served.requests(request, gpu_time(torch, arguments, one_token, TOKENS), correct)


if __name__ == "__main__":
    served.serve({"eager-llm": _generate}, __doc__)
