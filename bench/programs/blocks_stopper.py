"""Stops the kernels of a page, as another process does: `PAGE TIMES`; prints how long each stop took, in µs, as JSON.

From asking until the process whose kernels they are has said that they left the GPU.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from runlist.blocks import Page, Stopper

LONGEST_S = 5.0


def main() -> None:
    """Returns when all stops were made, or one took too long."""
    path, times = Path(sys.argv[1]), int(sys.argv[2])
    page, pauses = Page(path), random.Random(5)  # noqa: S311 (no secret)
    took: list[float] = []
    with Stopper(page) as stopper:
        while len(took) < times:
            ends = time.perf_counter() + LONGEST_S
            while not page.running():
                if time.perf_counter() > ends:
                    sys.exit("nothing runs that could be stopped")
            time.sleep(pauses.uniform(0.0002, 0.002))
            began = time.perf_counter()
            stopper.stop()
            while page.running():
                if time.perf_counter() - began > LONGEST_S:
                    sys.exit("the kernels do not stop")
            took.append((time.perf_counter() - began) * 1e6)
            stopper.resume()
    print(json.dumps(took))


if __name__ == "__main__":
    main()
