"""A reset in the manner of REEF: what a best-effort program has on the GPU is thrown away, and begun anew afterwards.

That is right only for kernels that may run twice: programs that are not known to have only such ones are refused.
"""

from __future__ import annotations

from bench.papers.gpreempt.systems.blocks import Blocks


class Reset(Blocks):
    """As quick to stop as a block is, and no state to save; the work done so far is lost."""

    name = "reset"
    title = "reset (as REEF)"
    published = ""
    way = "reset"

    @property
    def what(self) -> str:
        return "kernels that may be begun anew (idempotent ones)"


SYSTEM = Reset()
