"""A latency-critical PyTorch program: a 12-layer fp16 transformer, batch 1, as a CUDA graph, once a period."""

from __future__ import annotations

import gc
import os
import time

from runlist.workloads import options, protocol
from runlist.workloads.loops import RequestLoop

LAYERS, WIDTH, HEADS, FEED_FORWARD, SEQUENCE = 12, 768, 12, 3072, 128
_WARM_UPS = 5


def _body() -> None:
    parser = options.parser("runlist.workloads.torch_latency", __doc__)
    options.add_arrivals(parser, 5.0)
    parser.add_argument("--eager", action="store_true", help="run op by op instead of as a CUDA graph")
    args = parser.parse_args()

    torch = options.load_torch(args.gpu)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FEED_FORWARD, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda().half().eval()
    tokens = torch.randn(1, SEQUENCE, WIDTH, device="cuda", dtype=torch.half)

    with torch.no_grad():
        side = torch.cuda.Stream()  # a capture wants its warm-up on another stream than the default
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                expected = model(tokens)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(tokens)

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        if args.eager:
            with torch.no_grad():
                model(tokens)
        else:
            graph.replay()
        torch.cuda.synchronize()
        return began

    def correct() -> bool:
        graph.replay()
        torch.cuda.synchronize()
        return bool(torch.allclose(captured, expected, rtol=1e-2, atol=1e-2))

    report = options.reporter(args.report)
    loop = RequestLoop(
        request, args.period_ms / 1e3, poisson=args.poisson, jitter=args.jitter, report=report, correct=correct
    )
    gc.collect()
    gc.disable()  # a collection would show as a slow request
    protocol.run(loop, args.seconds, pid=os.getpid(), gpu=torch.cuda.get_device_name())


if __name__ == "__main__":
    options.main(_body, "torch_latency")
