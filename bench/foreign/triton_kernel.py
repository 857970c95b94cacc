"""A kernel of Triton's own, compiled here; it prints what came out."""

# ruff: noqa: ANN001, ANN201 (Triton takes annotations for types of its own)
import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add(x, y, out, count, size: tl.constexpr):  # type: ignore[no-untyped-def, unused-ignore]
    """`out` becomes `x` + `y`, each of `count` numbers, `size` of them by a program."""
    at = tl.program_id(0) * size + tl.arange(0, size)
    there = at < count
    tl.store(out + at, tl.load(x + at, there) + tl.load(y + at, there), there)


COUNT = 100_000
ones = torch.ones(COUNT, device="cuda")
total = torch.empty_like(ones)
for _ in range(10):
    add[(triton.cdiv(COUNT, 1024),)](ones, ones, total, COUNT, 1024)
print(float(total.sum()))
