"""A batch PyTorch program: bf16 products of 8192 × 8192 matrices then gelu, four and then a wait, over and over."""

from __future__ import annotations

import os

from runlist.workloads import options, protocol
from runlist.workloads.loops import BurstLoop

SIZE = 8192
BURST = 4


def _body() -> None:
    args = options.parser("runlist.workloads.torch_batch", __doc__).parse_args()

    torch = options.load_torch(args.gpu)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)

    def multiply() -> object:
        torch.mm(a, b, out=product)
        return torch.nn.functional.gelu(product)

    expected = multiply()
    torch.cuda.synchronize()

    def burst() -> None:
        for _ in range(BURST):
            multiply()
        torch.cuda.synchronize()

    def correct() -> bool:
        return bool(torch.equal(multiply(), expected))

    protocol.run(BurstLoop(burst, BURST, correct), args.seconds, pid=os.getpid(), gpu=torch.cuda.get_device_name())


if __name__ == "__main__":
    options.main(_body, "torch_batch")
