"""The training jobs that are measured: small and large, of every family, each described by a `Job`."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Job:
    """One training job; `bench/groundtruth/train.py` runs it.

    `size` is the edge of an image in pixels or the length of a text in tokens. `gib` is a rough guess of the
    GPU memory, only used to decide how many jobs run at once. `flags`: see `FLAGS`.
    """

    name: str
    model: str
    batch: int
    size: int
    optimizer: str = "AdamW"
    precision: str = "fp32"
    zero_grad: str = "start"
    steps: int = 4
    gib: float = 8.0
    flags: frozenset[str] = field(default_factory=frozenset)


FLAGS = {
    "benchmark": "torch.backends.cudnn.benchmark",
    "deterministic": "torch.backends.cudnn.deterministic",
    "tf32": "TF32 in matrix products and convolutions",
    "channels_last": "images and weights in channels_last",
    "checkpointing": "gradient checkpointing",
    "compile": "torch.compile",
    "lora": "LoRA adapters (peft)",
    "accumulate": "four backward passes for each optimizer step",
    "foreach_off": "optimizer with foreach=False",
    "fused": "optimizer with fused=True",
    "expandable": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "inference": "no backward pass",
    "evaluate": "an evaluation with four times the batch after the steps",
    "clip": "gradients clipped by norm",
    "ema": "an exponential moving average of the weights",
    "snapshot": "the memory history is kept as well",
}
PRECISIONS = ("fp32", "bf16", "fp16", "pure_bf16")
ZERO_GRAD = ("start", "before_backward", "after_step")


def _job(model: str, batch: int, size: int, *flags: str, **options: object) -> Job:
    """A job whose name says all that is not a default."""
    words = [model, f"b{batch}", str(size)]
    words += [str(value) for key, value in options.items() if key not in ("gib", "steps")]
    words += sorted(flags)
    return Job("-".join(words), model, batch, size, flags=frozenset(flags), **options)  # type: ignore[arg-type]


JOBS: tuple[Job, ...] = (
    # convolution networks as the literature measures them: CIFAR-10 at 86 x 86, and ImageNet's size
    _job("vgg16", 64, 224, optimizer="SGD", gib=12),
    _job("vgg16", 256, 86, optimizer="AdamW", gib=10),
    _job("vgg19", 339, 86, optimizer="Adam", gib=12),
    _job("vgg19", 64, 224, "benchmark", optimizer="SGD", gib=14),
    _job("vgg19", 64, 224, "deterministic", optimizer="SGD", gib=14),
    _job("resnet18", 256, 86, optimizer="RMSprop", gib=4),
    _job("resnet50", 64, 224, "snapshot", optimizer="SGD", gib=8),
    _job("resnet50", 256, 224, optimizer="SGD", gib=26),
    _job("resnet50", 64, 224, "benchmark", optimizer="SGD", gib=10),
    _job("resnet50", 64, 224, "channels_last", optimizer="SGD", precision="fp16", gib=6),
    _job(
        "resnet50", 64, 224, "channels_last", "benchmark", "tf32", optimizer="AdamW", precision="bf16", gib=6
    ),
    _job("resnet50", 64, 224, "evaluate", optimizer="SGD", gib=12),
    _job("resnet101", 351, 86, optimizer="SGD", gib=12),
    _job("resnet101", 399, 86, optimizer="Adagrad", zero_grad="before_backward", gib=14),
    _job("resnet152", 32, 224, optimizer="AdamW", zero_grad="after_step", gib=10),
    _job("mobilenet_v2", 512, 86, optimizer="SGD", gib=10),
    _job("mobilenet_v3_small", 598, 86, optimizer="AdamW", gib=4),
    _job("mobilenet_v3_large", 400, 86, optimizer="Adam", gib=6),
    _job("mnasnet1_0", 469, 86, optimizer="Adagrad", gib=8),
    _job("convnext_tiny", 282, 86, optimizer="Adam", gib=8),
    _job("convnext_base", 209, 86, optimizer="Adam", gib=12),
    _job("regnet_x_400mf", 650, 86, optimizer="SGD", gib=6),
    _job("regnet_y_400mf", 548, 86, optimizer="Adagrad", gib=6),
    _job("efficientnet_b0", 128, 224, optimizer="RMSprop", gib=12),
    _job("densenet121", 64, 224, optimizer="SGD", gib=10),
    _job("inception_v3", 64, 299, optimizer="SGD", gib=12),
    _job("deeplabv3_resnet50", 8, 480, optimizer="SGD", gib=16),
    _job("fasterrcnn", 4, 480, optimizer="SGD", gib=14),
    _job("unet", 16, 256, optimizer="Adam", gib=12),
    _job("unet", 16, 256, optimizer="Adam", precision="fp16", gib=8),
    # transformers, from their configurations
    _job("gpt2", 8, 1024, "snapshot", gib=16),
    _job("gpt2", 12, 1024, "fused", precision="bf16", gib=20),
    _job("gpt2", 12, 1024, "compile", precision="bf16", gib=20),
    _job("gpt2", 4, 1024, "accumulate", optimizer="SGD", gib=8),
    _job("gpt2", 8, 1024, "checkpointing", gib=10),
    _job("gpt2", 8, 1024, "expandable", gib=16),
    _job("gpt2", 8, 1024, "clip", "ema", gib=16),
    _job("gpt2", 16, 1024, "inference", gib=10),
    _job("gpt2", 8, 512, "foreach_off", optimizer="Adam", gib=8),
    _job("distilgpt2", 20, 512, optimizer="Adam", gib=12),
    _job("gpt-neo-125m", 35, 128, optimizer="SGD", gib=10),
    _job("gpt-neo-125m", 16, 512, optimizer="Adafactor", gib=14),
    _job("opt-125m", 38, 128, optimizer="AdamW", gib=8),
    _job("opt-350m", 13, 128, optimizer="AdamW", gib=8),
    _job("opt-350m", 8, 512, optimizer="Adafactor", gib=10),
    _job("cerebras-111m", 20, 128, optimizer="Adam", gib=6),
    _job("t5-small", 25, 512, optimizer="Adam", gib=10),
    _job("t5-base", 16, 256, optimizer="AdamW", gib=12),
    _job("pythia-1b", 4, 512, optimizer="AdamW", gib=24),
    _job("pythia-1b", 4, 512, "checkpointing", optimizer="AdamW", precision="bf16", gib=22),
    _job("qwen3-0.6b", 4, 512, optimizer="AdamW", gib=20),
    _job("qwen3-0.6b", 4, 1024, optimizer="AdamW", precision="pure_bf16", gib=14),
    _job("llama-1b", 2, 1024, "checkpointing", optimizer="AdamW", precision="pure_bf16", gib=14),
    _job("llama-1b", 4, 1024, "lora", optimizer="AdamW", precision="bf16", gib=18),
    _job("bert-base", 32, 256, optimizer="AdamW", gib=12),
    _job("bert-base", 32, 256, optimizer="AdamW", precision="fp16", gib=10),
    _job("vit-base", 64, 224, optimizer="AdamW", gib=14),
    _job("vit-base", 128, 224, "fused", optimizer="AdamW", precision="bf16", gib=16),
    _job("clip-like", 64, 224, optimizer="AdamW", precision="bf16", gib=16),
    _job("llava-like", 4, 336, optimizer="AdamW", precision="bf16", gib=24),
    _job("moe", 4, 512, optimizer="AdamW", precision="bf16", gib=20),
    # other shapes of work
    _job("lstm", 64, 256, "clip", optimizer="Adam", gib=6),
    _job("gru", 64, 256, optimizer="RMSprop", gib=6),
    _job("gan", 128, 64, optimizer="Adam", gib=4),
    _job("dit", 32, 32, "ema", optimizer="AdamW", precision="bf16", gib=12),
    _job("mlp", 4096, 2048, optimizer="SGD", gib=2),
    _job("mlp", 4096, 2048, "compile", optimizer="Adam", gib=2),
)


def find(name: str) -> Job:
    """The job of that name.

    Raises:
        KeyError: there is none.
    """
    return {job.name: job for job in JOBS}[name]


def matching(patterns: list[str]) -> list[Job]:
    """The jobs whose names match one of the patterns (as file names do); all, if there is no pattern."""
    return [job for job in JOBS if not patterns or any(fnmatchcase(job.name, p) for p in patterns)]
