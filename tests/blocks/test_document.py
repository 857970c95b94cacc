"""The examples of docs/blocks.md, as they are printed, on processor threads."""

from __future__ import annotations

import re
import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest

import runlist.blocks.kernel
from runlist import blocks
from runlist.blocks.host import Host

PAGE = Path(__file__).parents[2] / "docs" / "blocks.md"


def test_the_examples_run(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runlist.blocks.kernel, "_cuda", lambda: host)
    found = re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    examples = [textwrap.dedent(each) for each in found]
    assert len(examples) == 5
    there: dict[str, Any] = {}
    numbers = struct.pack("=1000000f", *[1.0] * 1_000_000)
    for each in examples:
        code = each.replace("/dev/shm/my-stops", str(tmp_path / "stops"))
        if "kernel.launch" in code:  # so that there is something to scale
            code = code.replace("\nwith kernel", "\nkernel.device.write(x, numbers)\nwith kernel", 1)
        exec(compile(code, str(PAGE), "exec"), there | {"numbers": numbers}, there)
    assert set(struct.unpack("=1000000f", host.read(there["x"]))) == {2.0 * 2.0 * 0.5 * 3.0 * 1.0}
    counted = host.allocate(4)
    with there["on_threads"].launch(100, 1, [counted]) as running:
        running.wait()
    assert there["on_threads"].device.read(counted) == struct.pack("=i", 100)


def test_the_header_is_where_include_says() -> None:
    assert (blocks.include() / "blocks.cuh").is_file()
