"""Other ways to predict a job's peak, each from its own publication, on the same jobs.

`PEERS` are asked one job at a time. The learned estimators need all rows: see `learned.out_of_fold`.
MemTracker has to run the job's script, which takes long: `fake_tensors.said` has the answers that `python -m
bench.accuracy.peers` found. Those of xMem and of GPUMemNet's FakeTensor come with the rows (`Job.published`).
LLMem is not here: its formula starts from what it measured on a GPU that the model was loaded to.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.accuracy.census import Census
from bench.accuracy.jobs import Job
from bench.accuracy.peers import layers, rules

Peer = Callable[[Job, Census], int | None]

PEERS: dict[str, Peer] = {
    "accelerate": rules.accelerate,
    "DeepSpeed": rules.deepspeed,
    "Horus": rules.horus,
    "factorised": layers.factorised,
}
LEARNED = ("learned, regression", "learned, ranges")
# What stands behind each name, for tables.
SOURCES = {
    "accelerate": "`accelerate estimate-memory`: four times the weights, for Adam",
    "DeepSpeed": "its estimator of model states (ZeRO-2, one GPU): 20 bytes a parameter",
    "Horus": "Yeung et al., TPDS 2022, by GPUMemNet: (activations + parameters + batch x gradients) x 4",
    "factorised": "parameters, gradients, optimizer, activations by layer; after arXiv:2512.07853",
    "learned, regression": "features of GPUMemNet, an ensemble of MLPs, five folds by model; tells the peak",
    "learned, ranges": "the same; tells a range of 8,000 MiB (random MLPs: 1,000), whose upper end counts",
    "MemTracker": "torch.distributed._tools.mem_tracker, two steps of the job's script on fake tensors",
    "FakeTensor (GPUMemNet)": "as published with the rows of timm models",
    "xMem": "as published with its rows",
}
