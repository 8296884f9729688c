"""A per-layer analytic factorisation: parameters, gradients, optimizer states and activations of each layer.

Source: Jeong et al., "GPU Memory Prediction for Multimodal Model Training", arXiv:2512.07853: a model is
taken apart into its layers, four factors are predicted for each, and all are added up to the peak. The
paper's own predictors are for LLaVA-1.5 under DeepSpeed. What a layer keeps for its backward pass is taken
from PyTorch's documentation of the layers instead: this is the method, not the authors' program.

Operators that are not modules (products of attention, residual sums, functional activations) are not seen by
it.
"""

from __future__ import annotations

from bench.accuracy.census import Census, Layer
from bench.accuracy.jobs import Job

FLOAT_BYTES, INDEX_BYTES, MASK_BYTES = 4, 8, 1
# Tensors of the parameters' size that an optimizer keeps. Adafactor's rows and columns are next to nothing.
OPTIMIZER_STATES = {
    "SGD": 0,
    "Adafactor": 0,
    "Adagrad": 1,
    "RMSprop": 1,
    "Lion": 1,
    "Adadelta": 2,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Rprop": 2,
}
# Layers whose result is a view of their input, or that keep nothing for the backward pass.
WITHOUT_ACTIVATIONS = ("Identity", "Flatten", "Unflatten", "DropPath", "StochasticDepth")


def optimizer_states(job: Job) -> int | None:
    """How many tensors of its size the optimizer keeps for a parameter; None for one that is not known.

    All SGD but xMem's is with momentum.
    """
    if job.optimizer == "SGD" and job.dataset != "xmem":
        return 1
    return OPTIMIZER_STATES.get(job.optimizer)


def activation_bytes(layer: Layer) -> int:
    """What one layer leaves behind for the backward pass: its result, and what its kind needs besides."""
    if layer.kind in WITHOUT_ACTIVATIONS:
        return 0
    kept = layer.outputs * FLOAT_BYTES
    if "Dropout" in layer.kind:
        kept += layer.outputs * MASK_BYTES
    elif "MaxPool" in layer.kind:
        kept += layer.outputs * INDEX_BYTES
    return kept


def factorised(job: Job, census: Census) -> int | None:
    """Bytes at the end of the forward pass of a step that has its gradients and optimizer states.

    All parameters are taken to be trained, as they are in all of the jobs. None where the optimizer is not
    known.
    """
    states = optimizer_states(job)
    if states is None:
        return None
    held = census.buffer_bytes + census.parameter_bytes * (2 + states)
    return held + sum(activation_bytes(layer) for layer in census.layers)
