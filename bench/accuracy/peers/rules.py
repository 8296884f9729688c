"""Rules that need no more than counts: accelerate's, DeepSpeed's, and the Horus formula.

None of them counts a CUDA context, cached memory or workspaces, and none is corrected for that here.
"""

from __future__ import annotations

from bench.accuracy.census import Census
from bench.accuracy.jobs import Job

FLOAT_BYTES = 4


def accelerate(job: Job, census: Census) -> int:
    """Bytes by `accelerate estimate-memory`: training with Adam takes four times the model in float32.

    One time for the weights, one for the gradients, two for the optimizer, whatever the optimizer and the
    batch. Source: huggingface.co/docs/accelerate/usage_guides/model_size_estimator.
    """
    return 4 * census.parameter_bytes


def deepspeed(job: Job, census: Census) -> int:
    """Bytes by DeepSpeed's estimator for model states under ZeRO-2, without offload, on one GPU.

    20 bytes a parameter: 2 + 2 for weights and gradients in 16 bits, 4 + 4 for both in 32, 8 for Adam's two
    moments, and nothing for activations. (It has no estimator for ZeRO-0; on one GPU nothing is partitioned.)
    Source: deepspeed.readthedocs.io/en/latest/memory.html.
    """
    return 20 * census.parameter_count


def horus(job: Job, census: Census) -> int:
    """Bytes by the Horus formula: (activations x batch + parameters + batch x gradients) x 4.

    Activations are the elements that all layers put out for one sample; there are as many gradients as
    parameters, and they are multiplied with the batch. Source: Yeung et al., "Horus", IEEE TPDS 33(1), 2022,
    in the form that github.com/itu-rad/GPUMemNet tests it (Test_Pipeline and Related_works), and
    arXiv:2602.17817.
    """
    gradients = census.parameter_count
    activations_of_batch = census.output_elements
    return FLOAT_BYTES * (activations_of_batch + census.parameter_count + job.batch * gradients)
