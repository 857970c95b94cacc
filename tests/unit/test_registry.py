"""The list of planes: which one is taken, what a name that is none says, and whose controls are offered."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist.errors import UsageError
from runlist.planes import registry
from runlist.planes.control import Control
from runlist.planes.registry import choose_plane, controls

FOREIGN = """
from runlist.planes.control import Control
class Mine:
    name = "mine"
CONTROLS = (Control("speed", ("slow", "fast"), "slow", "how fast", False),)
def make_plane():
    return Mine()
"""


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A vendor's package, and none named."""
    package = tmp_path / "some_vendor"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plane.py").write_text(FOREIGN)
    (package / "bare.py").write_text("")
    (package / "broken.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("RUNLIST_DEVICE", "RUNLIST_EMULATED_GPU"):
        monkeypatch.delenv(name, raising=False)


def test_the_named_plane_or_that_of_the_environment_or_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_plane().name == "nvidia"
    monkeypatch.setenv("RUNLIST_DEVICE", "some_vendor.plane")
    assert choose_plane().name == "mine"
    assert choose_plane("nvidia").name == "nvidia"
    monkeypatch.setenv("RUNLIST_EMULATED_GPU", "/gpu")
    assert choose_plane("emulated").name == "emulated"
    monkeypatch.setenv("RUNLIST_DEVICE", "")
    assert choose_plane().name == "nvidia"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("amd", "no device 'amd': take nvidia or emulated"),
        ("", "no device '': take nvidia or emulated"),
        ("some_vendor.missing", "no device 'some_vendor.missing': No module named 'some_vendor.missing'"),
        ("some_vendor.broken", "no device 'some_vendor.broken': No module named 'nothing_of_that_name'"),
        ("some_vendor.bare", "no device 'some_vendor.bare': module 'some_vendor.bare' has no attribute 'make_plane'"),
    ],
)
def test_a_name_that_is_none_is_one_line(name: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_plane(name)
    assert str(caught.value) == line


def test_a_vendor_of_ours_need_have_no_controls_but_those_it_has_must_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for vendor in ("bare_vendor", "broken_vendor"):
        (tmp_path / vendor).mkdir()
        (tmp_path / vendor / "__init__.py").touch()
        monkeypatch.setitem(registry.PLANES, vendor, vendor)
    (tmp_path / "broken_vendor" / "controls.py").write_text("import nothing_of_that_name")
    monkeypatch.setenv("RUNLIST_DEVICE", "bare_vendor")
    assert controls() == ()
    monkeypatch.setenv("RUNLIST_DEVICE", "broken_vendor")
    with pytest.raises(ImportError, match="nothing_of_that_name"):
        controls()


def test_controls_are_those_of_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (interleave,) = controls()
    assert (interleave.name, interleave.default, interleave.privileged) == ("interleave", "low", True)
    assert interleave.words == ("low", "medium", "high")
    for name in ("nvidia", "emulated"):
        monkeypatch.setenv("RUNLIST_DEVICE", name)
        assert controls() == (interleave,)
    monkeypatch.setenv("RUNLIST_DEVICE", "some_vendor.plane")
    assert controls() == (Control("speed", ("slow", "fast"), "slow", "how fast", False),)
    for name in ("some_vendor.bare", "some_vendor.missing"):  # whoever chooses it is told
        monkeypatch.setenv("RUNLIST_DEVICE", name)
        assert controls() == ()
    monkeypatch.setenv("RUNLIST_DEVICE", "nonsense")
    assert controls() == (interleave,)
