"""GPU programs that share a GPU: a latency-critical one and a batch one, for the demo, the tests and the benchmarks.

Each is a program of its own (`python -m runlist.workloads.latency`, `.batch`, `.torch_latency` or `.torch_batch`), the
same on a real and on the emulated GPU, and knows nothing of Runlist. `process.WorkloadProcess` starts and steers one.
"""
