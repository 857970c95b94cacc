"""Parts of a GPU are one thing whoever gives them out: the same weight, and parts of the same memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from runlist.errors import NotSupportedError
from runlist.integrations.gpu_sizes import gpu_sizes
from runlist.integrations.kubernetes.names import GRANTED_SHARE
from runlist.integrations.node.dialects import Asked, granted, hami, kai
from runlist.integrations.node.pods import Pod
from runlist.integrations.parts import WHOLE
from runlist.integrations.ray.shares import Options, settings_of
from runlist.integrations.slurm.job import Job
from runlist.model import Task
from runlist.planes.registry import choose_plane
from tests.fixtures import memory_plane
from tests.fixtures.daemon import ROOT


def weight_in_pod(annotations: dict[str, str]) -> str:
    asked = Asked(Pod("uid", "pod", "space", annotations, order=("c",)), "c", ("c",), lambda: 80 << 30, {}, annotations)
    return {wish.key: wish.value for dialect in (granted, kai, hami) for wish in dialect(asked)}["weight"]


@pytest.mark.parametrize("percent", [1, 12, 25, 50, 99])
def test_a_part_weighs_the_same_whoever_gives_it_out(percent: int) -> None:
    part = percent / 100
    assert {
        str(Job(7, 1000, "n1", part).weight),
        settings_of(part, Options())["weight"],
        weight_in_pod({GRANTED_SHARE: str(percent)}),
        weight_in_pod({"gpu-fraction": str(part)}),
        weight_in_pod({"hami.io/vgpu-devices-allocated": f"GPU-x,NVIDIA,100,{percent}:;"}),
    } == {str(percent)}


def test_a_whole_gpu_weighs_what_everybody_has() -> None:
    assert Job(7, 1000, "n1", 1.0).weight == WHOLE == int(settings_of(1.0, Options())["weight"])
    assert next(field.default for field in fields(Task) if field.name == "weight") == WHOLE


def test_sizes_come_from_the_plane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(memory_plane.VARIABLE, str(tmp_path))
    assert gpu_sizes(choose_plane(memory_plane.__name__)) == {"0": 1 << 30, memory_plane.GPU: 1 << 30}


def test_nobody_tells_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNLIST_SOCKET", str(tmp_path / "none.sock"))
    with pytest.raises(NotSupportedError, match="nobody says how much memory the GPUs have"):
        gpu_sizes(choose_plane("nvidia"))


def test_a_plane_of_others_has_its_cdi_devices(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "RUNLIST_DEVICE": memory_plane.__name__,
        memory_plane.VARIABLE: str(tmp_path),
        "RUNLIST_SOCKET": str(tmp_path / "daemon.sock"),
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-m", "runlist.cli", "cdi", "generate", "--no-preload"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [device["name"] for device in json.loads(done.stdout)["devices"]] == ["0", memory_plane.GPU, "all"]
