"""The notebooks of docs/, run by Jupyter on an emulated GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from tests.fixtures.node import needs_modules
from tests.fixtures.notebooks import NOTEBOOKS


@needs_modules("nbclient", "nbformat", "ipykernel")
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(fresh_gpu: Callable[..., EmulatedGpu], path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    for name, value in fresh_gpu().environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    said = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in said]
    assert "[('batch', 50, None)]" in texts
    assert any("class=urgent: take deadline, latency, normal, batch" in text for text in texts)
    assert any("runlist run --memory" in text for text in texts)
