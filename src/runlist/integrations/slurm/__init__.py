"""Slurm's shards of a GPU made true: a prolog writes what a job gets as a drop-in rule, an epilog takes it away."""
