"""GPUs as devices of the Container Device Interface: `podman run --device runlist.dev/gpu=0`."""
