"""Names of the variables that say which device programs are to use."""

DEVICE_VARIABLE = "RUNLIST_DEVICE"
EMULATED_GPU_VARIABLE = "RUNLIST_EMULATED_GPU"
