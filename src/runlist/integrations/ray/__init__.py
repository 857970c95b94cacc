"""Ray: `num_gpus` of tasks and actors as weight, and on request as cap and memory quota (docs/ray.md)."""
