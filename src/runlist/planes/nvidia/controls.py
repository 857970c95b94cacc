"""What users may set in the driver beyond slices and suspension: one row a control."""

from __future__ import annotations

from runlist.planes.interface import Control

INTERLEAVE = Control(
    "interleave",
    ("low", "medium", "high"),
    default="low",
    help="How often the runlist names its channel groups.",
    privileged=True,
)

CONTROLS = (INTERLEAVE,)
