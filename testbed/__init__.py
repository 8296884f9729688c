"""A real one-machine Slurm with pretend GPUs: for the tests, the benchmarks and `make demo`. Needs root."""
