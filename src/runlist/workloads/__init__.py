"""GPU programs that share a GPU: latency-critical ones and batch ones, for the demo, the tests and the benchmarks.

Each is a program of its own, the same on a real and on the emulated GPU: `python -m runlist.workloads.latency`,
`.batch`, `.timed`, `.alloc`, `.torch_latency`, `.torch_batch`. They know nothing of Runlist, but for one option that
makes requests report how long they took. `process.WorkloadProcess` starts and steers one.
"""
