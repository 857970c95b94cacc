"""The programs of the experiments, in PyTorch: `python -m bench.papers.orion.programs.NAME`.

They know nothing of Runlist. How one is written is in `bench/papers/common/programs/serving.py`.
"""
