"""Names by which Runlist is known in Kubernetes, once for all parts."""

from __future__ import annotations

DOMAIN = "runlist.dev"

# -- resources that the device plugin offers, and that a container asks for in its limits ----------
SHARE_RESOURCE = f"{DOMAIN}/gpu-share"
"""Percent of a GPU: each GPU has 100."""
MEMORY_RESOURCE = f"{DOMAIN}/gpu-memory"
"""GiB of a GPU's memory."""

# -- what the device plugin granted. These are annotations of the container (CRI's `Container.annotations`), which only
# the kubelet writes; those of a pod are the pod's author's
# --------------------------------------------------------------
GRANTED_SHARE = f"{DOMAIN}/granted-share"
"""Percent of one GPU, on each of GRANTED_GPUS."""
GRANTED_MEMORY = f"{DOMAIN}/granted-memory"
"""Bytes of memory on each of GRANTED_GPUS."""
GRANTED_GPUS = f"{DOMAIN}/granted-gpus"
"""UUIDs of GPUs, separated by commas."""
GRANTED_MEMORY_GPUS = f"{DOMAIN}/granted-memory-gpus"
"""The same of the resource of memory, which Kubernetes allocates apart from the share."""

# -- CDI -------------------------------------------------------------------------------------------
CDI_KIND = f"{DOMAIN}/gpu"
"""`--device runlist.dev/gpu=0`."""

SETTING_PREFIX = f"{DOMAIN}/"
"""What an annotation begins with that gives a setting: `runlist.dev/class`."""
