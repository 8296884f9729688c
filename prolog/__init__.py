"""Prolog, epilog and sampler of a compute node: what each job really used of its GPUs' memory."""
