"""`docs/papers/gpreempt.md`: the claims of the paper, judged one by one."""

from __future__ import annotations

from bench.papers.common.pictures import measured_on
from bench.papers.common.tables import markdown
from bench.papers.gpreempt import tables
from bench.papers.gpreempt.analysis import Results

_INTRODUCTION = """\
# GPreempt, tried again across processes

GPreempt (USENIX ATC'25) preempts by timeslices of 1 s and 1 µs, and hides the switch behind a hint. Its claims rest on
contexts of one process, a patched driver, and means on an A100. Here the same workloads are ordinary processes on the
stock driver, and each system is measured with means, p99 and p99.9.

```sh
python -m bench.papers.gpreempt hello                # does it work here? PASS lines, a few seconds
python -m bench.papers.gpreempt run --out results    # at most 2 hours; --quick: 12 minutes. Run it again to go on
python -m bench.papers.gpreempt plot -r results      # results/figures/index.html, and a PNG a figure
python -m bench.papers.gpreempt plot -r results --document docs/papers/gpreempt.md     # this page
```
"""

_METHOD = """
## What is measured

- **Workloads**: `bench/papers/gpreempt/workloads`, in the form of DISB. Each file says what was chosen where nothing
  is published: which models A and B run, how often the graph jobs of Z are asked, what B0 to B4 and R are, and the
  traces of REAL, which were not shipped and are made by seed here.
- **Two queues**, side by side: *newest wins*, as DISB has it, where a request that comes while another is served
  takes the place of one that waits, and latency counts from when it is taken up; and an *open queue*, where all are
  served, and latency counts from the intended arrival. The published figures are of the first kind.
- **Systems**: LC only; NP (threads of one process, stream priorities); [Orion's rule](orion.md) (the same threads,
  their operations scheduled; for workloads with one LC program); SEQ (a lock, LC first); the driver's time slicing;
  MPS; WB (block-level preemption, for programs that offer it); a reset as REEF's (for kernels that may run twice);
  GPreempt's rule without and with hint; Runlist. An [earlier run of three workloads](gpreempt-systems.md) has all of
  these. `--peer NAME=PATH` runs one that you built: `PATH lc|be COMMAND…`.
- **Networks** have random weights by seed and batch 1. The latency-critical ones are CUDA graphs (`--eager`: kernel by
  kernel), the best-effort ones launch kernel by kernel.
- **GPreempt's rule** here is Runlist's policy `gpreempt`, on processes. It allows one best-effort context: where a
  workload has more best-effort programs, these are threads of one process, as in the paper.
- **What the processor does**, such as making an input, is done by one thread of each program: with as many as there
  are cores, which is what PyTorch does by itself, inputs took 19 to 34 ms beside others and 0.7 ms alone.
- **Several best-effort programs** take turns under Runlist, one at a time, and a network that is launched kernel by
  kernel leaves the GPU idle for a good part of its turn. Under GPreempt's rule and NP they are threads of one process,
  and under MPS one context of the GPU: they fill each other's gaps. So Runlist's best-effort throughput is the least
  where there are several, and equal to the others' where there is one. *Runlist, best effort by MPS* has both: they are
  clients of one MPS server, which is one task to Runlist ([figures](../guide.md#several-batch-programs)).
- **NP** has Python's own lock in it, since its programs are threads of one Python process: its latencies are upper
  bounds.
- **The hint** is a kernel of one thread on the program's own stream, with the request queued behind it, {hint}. The
  input is copied on another stream when the request is due, and then the kernel is let go.
- **Results** are digests of each request's output, equal in all windows, and what the programs themselves check.
- A run keeps machine, driver and versions, and goes on where it was interrupted. A program that dies has its row say
  so.
- **Figures**: 4a and 4b are LC latency of A to REAL, and of Y and Z; 5 throughput, 6 latency added, 7a how long ahead
  the hint is, 7b with and without it. Which workloads the paper has in 4a and in 4b is our reading.
"""


def text(results: Results) -> str:
    """The whole document. Without a run on a real GPU no row is judged."""
    from bench.papers.gpreempt.systems.system import HINT_US

    state = "No run on a GPU has been kept yet: nothing is judged.\n"
    if results.real:
        state = f"{measured_on(results.machine)}.\n{results.remarks}"
    verdicts = markdown(tables.verdict_table(results))
    parts = [_INTRODUCTION, "\n## Verdicts\n\n", state, "\n", verdicts]
    if results.real:
        parts += ["\n## Ours and the published ones\n\n", markdown(tables.comparison(results))]
        parts += ["\n## Left out, and why\n\n", markdown(tables.left_out(results))]
    parts.append(_METHOD.replace("{hint}", f"{HINT_US:g} µs ahead of it"))
    return "".join(parts)
