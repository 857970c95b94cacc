"""What PyTorch offers, one way of using it a run: `torch_ways.py NAME` prints what came out."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.multiprocessing
from torch import nn


def _network(width: int = 512) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    ).cuda()


def _said(*numbers: Any) -> None:
    print(*(f"{float(each):.3f}" for each in numbers), flush=True)


def training() -> None:
    """With mixed precision, a gradient scaler, and a checkpoint that is read again."""
    model, scaler = _network(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(30):
        x, y = torch.randn(256, 512, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file.name)
        again = _network()
        again.load_state_dict(torch.load(file.name, map_location="cuda"))
    ones = torch.ones(4, 512, device="cuda")
    _said(loss, (again(ones) - model(ones)).abs().max())


class _Data(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 2000

    def __getitem__(self, at: int) -> Any:
        return torch.full((512,), float(at % 7)), at % 10


def data_loader() -> None:
    """Processes that load, pinned memory, copies that do not wait."""
    model, total = _network(), 0.0
    loader = torch.utils.data.DataLoader(
        _Data(), batch_size=100, num_workers=4, pin_memory=True, persistent_workers=True
    )
    for _ in range(2):
        for x, _y in loader:
            total += float(model(x.cuda(non_blocking=True)).sum())
    _said(total)


def _adds(queue: Any, done: Any) -> None:
    tensor = queue.get()
    tensor += 2
    torch.cuda.synchronize()
    del tensor
    done.set()


def shared_tensors() -> None:
    """A tensor that another process changes, by CUDA's handles."""
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=_adds, args=(queue, done))
    child.start()
    tensor = torch.ones(1 << 20, device="cuda")
    queue.put(tensor)
    came = done.wait(120)
    child.join(60)
    _said(came, child.exitcode, tensor.sum())


def compiled() -> None:
    """`torch.compile` with graphs, shapes that change, and a backward pass."""
    model = torch.compile(_network(), mode="reduce-overhead")
    for size in (8, 8, 8, 32, 32, 8):
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)  # the last ones lie in memory of the graph
        model(torch.ones(size, 512, device="cuda")).sum().backward()
    with torch.no_grad():
        _said(model(torch.ones(8, 512, device="cuda")).sum())


def autotuned() -> None:
    """`torch.compile` that times kernels of Triton's."""
    work = torch.compile(lambda a, b: (a @ b).relu().sum(), mode="max-autotune-no-cudagraphs")
    a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
    _said(work(a, a))


def captured() -> None:
    """A training step as a graph, in a pool of its own, beside other streams."""
    model, x = _network(), torch.randn(64, 512, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    other = torch.cuda.Stream(priority=-1)
    for _ in range(50):
        graph.replay()
        with torch.cuda.stream(other):
            x.mul(2)
    torch.cuda.synchronize()
    _said(loss)


def profiled() -> None:
    """Its profiler, over CUPTI: it sees the kernels."""
    model = _network()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            model(torch.ones(8, 512, device="cuda"))
        torch.cuda.synchronize()
    seen = [
        each
        for each in profile.events()
        if "gemm" in each.name.lower() or "cutlass" in each.name.lower() or "splitK" in each.name
    ]
    print(len(seen) >= 5, flush=True)


def out_of_memory() -> None:
    """More than there is is refused as an exception, and the program goes on."""
    kept = []
    try:
        while True:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info()
        print("refused", len(kept) > 2, free < 3 << 30, len(kept) << 30 <= total, flush=True)
    kept.clear()
    torch.cuda.empty_cache()
    _said(_network()(torch.ones(1, 512, device="cuda")).sum())


def linear_algebra() -> None:
    """cuSOLVER, cuFFT, cuSPARSE, cuRAND, cuDNN."""
    torch.manual_seed(1)
    a = torch.randn(200, 200, device="cuda", dtype=torch.float64)
    values = torch.linalg.eigvalsh(a @ a.T)
    back = torch.fft.ifft(torch.fft.fft(a)).real
    sparse = (a * (a > 1)).to_sparse_csr() @ a
    picture = nn.functional.conv2d(torch.ones(1, 3, 64, 64, device="cuda"), torch.ones(8, 3, 3, 3, device="cuda"))
    _said(values.max(), (back - a).abs().max(), sparse.sum(), picture.sum(), torch.linalg.det(a).log().abs() > 0)


def attention() -> None:
    """Flash attention and its backward pass; nested and jagged tensors."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.float().square().sum().backward()
    assert q.grad is not None
    print(f"{float(out.float().abs().mean()):.2f} {float(q.grad.float().abs().mean()):.1f}", flush=True)


def allocations() -> None:
    """Many sizes in changing order, freed and taken again, with the allocator's own account."""
    generator, kept, total = torch.Generator().manual_seed(3), [], 0.0
    for turn in range(2000):
        size = int(torch.randint(1, 1 << 22, (1,), generator=generator))
        kept.append(torch.full((size,), float(turn % 5), device="cuda"))
        if len(kept) > 20:
            total += float(kept.pop(int(torch.randint(0, 20, (1,), generator=generator))).mean())
        if turn % 500 == 499:
            torch.cuda.empty_cache()
    _said(total, torch.cuda.memory_allocated() >> 20)


def wrong_index() -> None:
    """An assertion of a kernel ends the program as it does without anybody."""
    torch.ones(4, device="cuda")[torch.tensor([7], device="cuda")].sum().item()


def forked() -> None:
    """A child of fork may not use the GPU, and is told so."""
    torch.ones(1, device="cuda")
    context = torch.multiprocessing.get_context("fork")
    child = context.Process(target=lambda: torch.ones(1, device="cuda"))
    child.start()
    child.join()
    _said(child.exitcode, torch.ones(3, device="cuda").sum())


def in_threads() -> None:
    """Ten threads with streams of their own."""
    from concurrent.futures import ThreadPoolExecutor

    model = _network().eval()

    def works(number: int) -> float:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            found = torch.zeros((), device="cuda")
            for _ in range(100):
                found += model(torch.full((16, 512), float(number), device="cuda")).sum()
            return float(found)

    with ThreadPoolExecutor(10) as pool:
        _said(*pool.map(works, range(10)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
