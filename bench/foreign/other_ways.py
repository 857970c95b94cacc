"""Frameworks beside PyTorch, one a run: `other_ways.py NAME` prints what came out."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")


def jax_training() -> None:
    """A network of JAX's own words, its pool of memory as it comes."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, x: Any) -> Any:
        for each in weights:
            x = jnp.tanh(x @ each)
        return (x**2).mean()

    weights = [jax.random.normal(jax.random.key(n), (512, 512)) * 0.05 for n in range(4)]
    step = jax.jit(lambda w, x: [a - 0.1 * g for a, g in zip(w, jax.grad(loss)(w, x), strict=True)], donate_argnums=0)
    x = jax.random.normal(jax.random.key(9), (256, 512))
    for _ in range(100):
        weights = step(weights, x)
    print(f"{float(loss(weights, x)):.4f}", jax.devices()[0].platform)


def jax_ways() -> None:
    """vmap, scan, callbacks to the host, a linear solve."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    a = jax.random.normal(jax.random.key(0), (8, 64, 64)) + 8 * jnp.eye(64)
    solved = jax.vmap(jnp.linalg.solve)(a, jnp.ones((8, 64)))
    total, _ = jax.lax.scan(lambda c, x: (c + x.sum(), None), 0.0, a)
    called = jax.jit(lambda x: jax.pure_callback(lambda y: np.asarray(y) + 1, jax.ShapeDtypeStruct((), jnp.float32), x))
    print(f"{float(jnp.abs(a @ solved[..., None] - 1).max()):.2f} {float(total):.1f} {float(called(2.0)):.0f}")


def cupy_ways() -> None:
    """A raw kernel, pools, managed memory, a graph, sparse algebra."""
    import cupy
    import cupyx.scipy.sparse as sparse

    source = """extern "C" __global__ void twice(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= 2;
    }"""
    kernel = cupy.RawKernel(source, "twice")
    x = cupy.arange(1 << 20, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kernel(((1 << 20) // 256,), (256,), (x, cupy.int32(1 << 20)))
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    first = float(x.sum())
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    second = float(cupy.ones(1 << 20).sum())
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    matrix = sparse.random(1000, 1000, 0.01, format="csr", random_state=0)
    third = float((matrix @ cupy.ones(1000)).sum()) > 0
    print(first, second, third, round(float(cupy.linalg.norm(cupy.fft.fft(cupy.ones(1000)))), 2))


def generated() -> None:
    """Transformers: text of a small Llama with random weights, eager and with a compiled static cache."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, vocab_size=1000
    )
    model = LlamaForCausalLM(small).cuda().eval()
    words = torch.arange(1, 20, device="cuda")[None]
    for cache in ("dynamic", "static"):
        out = model.generate(
            words,
            attention_mask=torch.ones_like(words),
            max_new_tokens=24,
            do_sample=False,
            cache_implementation=cache,
            pad_token_id=0,
            eos_token_id=None,
        )
        print(out[0, -24:].tolist())


def lightning() -> None:
    """PyTorch Lightning fits a module."""
    import pytorch_lightning as pl
    import torch

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(32, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return (self.layer(batch[0]) - 1).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch.manual_seed(1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(512, 32)), batch_size=32)
    model = Module()
    pl.Trainer(
        max_epochs=5, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, data)  # fmt: skip
    print(f"{float(model.layer.weight.sum()):.3f}")


def graph_network() -> None:
    """PyTorch Geometric: two layers over a graph."""
    import torch
    from torch_geometric.nn import GCNConv

    torch.manual_seed(0)
    edges = torch.randint(0, 1000, (2, 5000), device="cuda")
    first, second = GCNConv(16, 32).cuda(), GCNConv(32, 4).cuda()
    out = second(first(torch.ones(1000, 16, device="cuda"), edges).relu(), edges)
    print(f"{float(out.abs().sum()):.1f}")


def gaussian_process() -> None:
    """GPyTorch: marginal likelihood of a process over 500 points."""
    import gpytorch
    import torch

    x = torch.linspace(0, 1, 500, device="cuda")

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc, unused-ignore]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, torch.sin(6 * x), likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, points: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Model(likelihood).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    measure = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(20):
        optimizer.zero_grad()
        loss = -measure(model(x), model.train_targets)
        loss.backward()
        optimizer.step()
    print(f"{float(loss):.2f}")


def management() -> None:
    """NVML as a program reads it: nothing of it fails."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory, uses = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUtilizationRates(handle)
    print(pynvml.nvmlDeviceGetCount(), memory.used + memory.free <= memory.total, 0 <= uses.gpu <= 100)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
