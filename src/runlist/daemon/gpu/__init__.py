"""The scheduler and the usage accounts of each GPU."""
