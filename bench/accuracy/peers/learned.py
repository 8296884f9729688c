"""A learned estimator with the features of GPUMemNet, tested on models that it has not seen.

Source: github.com/itu-rad/GPUMemNet and arXiv:2602.17817. Features: depth, activations of a sample and of
the batch, parameters, batch size, how many layers of each kind there are, and which activation function.
Network: an ensemble of small multilayer perceptrons whose outputs are averaged. Task: the range of 8,000
MiB (1,000 MiB for the random MLPs) that the peak lies in; the upper end of it is what a job would be given.
Beside it is the same network as a regressor of the peak's logarithm, which is kinder to a relative error
than ranges are. Ours are the sizes of the layers, the training, the optimizer's states as a feature, and
one network for all data sets, which is told them apart (they measure from different zeros).

The rows are split by model, for k folds: every answer comes from a network that was trained without any row
of that model, in whatever data set and at whatever batch size. Features are scaled by the rows trained on
alone.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.accuracy.census import Census
from bench.accuracy.jobs import Job
from bench.accuracy.peers.layers import optimizer_states

MIB = 1024**2
FOLDS, MEMBERS, HIDDEN, SEED = 5, 8, (64, 32), 0
STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 1500, 256, 3e-3, 1e-3
RANGE_BYTES = {"mlp": 1000 * MIB}
USUAL_RANGE_BYTES, RANGES = 8000 * MIB, 6  # the last one is open
KINDS = ("Conv", "BatchNorm", "LayerNorm", "GroupNorm", "Linear", "Dropout", "Pool", "Embedding", "Attention")
ACTIVATIONS = (
    "ReLU",
    "ReLU6",
    "GELU",
    "SiLU",
    "Hardswish",
    "LeakyReLU",
    "ELU",
    "SELU",
    "PReLU",
    "Mish",
    "Tanh",
)

Row = tuple[Job, Census]
Key = tuple[str, str]


@dataclass(frozen=True)
class Answer:
    """Bytes; `range_bytes` is the upper end of the range that was predicted."""

    regressed_bytes: int
    range_bytes: int


def architecture(model: str) -> str:
    """One spelling for a model that several data sets know: `ResNet101` and `resnet101`."""
    return re.sub(r"[^a-z0-9]", "", model.lower().rpartition("/")[2])


def folds_by_model(models: Sequence[str], folds: int = FOLDS, seed: int = SEED) -> list[int]:
    """The fold of each row: an architecture is in one only, and the folds have about as many rows each.

    Raises:
        ValueError: there are fewer architectures than folds.
    """
    counts = Counter(architecture(model) for model in models)
    if len(counts) < folds:
        raise ValueError(f"{len(counts)} models cannot be split into {folds} folds")
    order = sorted(counts)
    random.Random(seed).shuffle(order)
    order.sort(key=lambda name: -counts[name])
    rows_of = [0] * folds
    fold_of: dict[str, int] = {}
    for name in order:
        fold = rows_of.index(min(rows_of))
        fold_of[name] = fold
        rows_of[fold] += counts[name]
    return [fold_of[architecture(model)] for model in models]


def features(job: Job, census: Census, datasets: Sequence[str]) -> list[float]:
    """What the network is told: logarithms of counts, and which of `datasets` the job is from."""
    of_kind = Counter(kind for layer in census.layers for kind in KINDS if kind in layer.kind)
    functions = Counter(layer.kind for layer in census.layers)
    total = sum(functions[name] for name in ACTIVATIONS) or 1
    return [
        math.log1p(len(census.layers)),
        math.log1p(census.output_elements / job.batch),
        math.log1p(census.output_elements),
        math.log1p(census.parameter_count),
        math.log1p(job.batch),
        float(optimizer_states(job) or 0),
        *(math.log1p(of_kind[kind]) for kind in KINDS),
        *(functions[name] / total for name in ACTIVATIONS),
        *(float(job.dataset == name) for name in datasets),
    ]


def range_of(job: Job) -> int:
    """The range that the measured peak lies in."""
    return min(job.truth_bytes // RANGE_BYTES.get(job.dataset, USUAL_RANGE_BYTES), RANGES - 1)


def out_of_fold(rows: Sequence[Row], folds: int = FOLDS) -> dict[Key, Answer]:
    """The answer for every job, by data set and name, from a network that has seen no row of its model.

    Rows that met the limit of the card are answered, but not learned from.
    """
    import torch

    torch.set_num_threads(1)  # the products are small: threads would only wait for each other
    datasets = sorted({job.dataset for job, _ in rows})
    fold_of = folds_by_model([job.model for job, _ in rows], folds)
    inputs = torch.tensor([features(job, census, datasets) for job, census in rows])
    answers: dict[Key, Answer] = {}
    for fold in range(folds):
        train = [i for i, job in enumerate(rows) if fold_of[i] != fold and not job[0].capped]
        test = [i for i in range(len(rows)) if fold_of[i] == fold]
        learned = fit(inputs[train], [rows[i][0] for i in train])
        answers |= predict(learned, inputs[test], [rows[i][0] for i in test])
    return answers


@dataclass(frozen=True)
class Learned:
    """A trained ensemble and the scaling of its inputs and of the logarithm of the peak."""

    network: Any
    mean: Any
    deviation: Any
    log_mean: float
    log_deviation: float


def fit(inputs: Any, jobs: Sequence[Job], steps: int = STEPS) -> Learned:
    """Trains on rows of shape (rows, features); takes seconds on a CPU."""
    import torch

    random_state = torch.Generator().manual_seed(SEED)
    mean, deviation = inputs.mean(0), inputs.std(0).clamp_min(1e-3)
    scaled = (inputs - mean) / deviation
    logs = torch.tensor([math.log(job.truth_bytes) for job in jobs])
    log_mean, log_deviation = float(logs.mean()), max(float(logs.std()), 1e-3)
    wanted = (logs - log_mean) / log_deviation
    ranges = torch.tensor([range_of(job) for job in jobs])
    network = _network(inputs.shape[1], random_state)
    optimizer = torch.optim.AdamW(network, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        # each member sees a batch of its own
        chosen = torch.randint(len(jobs), (MEMBERS, min(BATCH, len(jobs))), generator=random_state)
        found = _forward(network, scaled[chosen])
        loss = torch.nn.functional.smooth_l1_loss(found[..., 0], wanted[chosen])
        loss = loss + torch.nn.functional.cross_entropy(
            found[..., 1:].flatten(0, 1), ranges[chosen].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return Learned(network, mean, deviation, log_mean, log_deviation)


def predict(learned: Learned, inputs: Any, jobs: Sequence[Job]) -> dict[Key, Answer]:
    """The answers for rows of shape (rows, features), by data set and name."""
    import torch

    with torch.no_grad():
        scaled = (inputs - learned.mean) / learned.deviation
        found = _forward(learned.network, scaled.expand(MEMBERS, *scaled.shape)).mean(0)
    logs = (found[:, 0] * learned.log_deviation + learned.log_mean).tolist()
    ranges = found[:, 1:].argmax(1).tolist()
    return {
        (job.dataset, job.name): Answer(
            int(math.exp(log)), (range_ + 1) * RANGE_BYTES.get(job.dataset, USUAL_RANGE_BYTES)
        )
        for job, log, range_ in zip(jobs, logs, ranges, strict=True)
    }


def _network(width: int, random_state: Any) -> list[Any]:
    """Weights and biases of all members at once, of shape (members, from, to) and (members, 1, to)."""
    import torch

    sizes = (width, *HIDDEN, 1 + RANGES)
    network = []
    for before, after in itertools.pairwise(sizes):
        weight = torch.randn(MEMBERS, before, after, generator=random_state) * math.sqrt(2 / before)
        network += [weight.requires_grad_(), torch.zeros(MEMBERS, 1, after, requires_grad=True)]
    return network


def _forward(network: list[Any], inputs: Any) -> Any:
    """(members, rows, features) to (members, rows, 1 + ranges): the regressed value, then the classes."""
    import torch

    for i in range(0, len(network), 2):
        inputs = torch.baddbmm(network[i + 1], inputs, network[i])
        if i + 2 < len(network):
            inputs = torch.nn.functional.gelu(inputs)
    return inputs


def answers_by_name(answers: Mapping[Key, Answer]) -> dict[str, dict[Key, int]]:
    """The two estimators apart, as `PEERS` names them."""
    found: dict[str, dict[Key, int]] = defaultdict(dict)
    for key, answer in answers.items():
        found["learned, regression"][key] = answer.regressed_bytes
        found["learned, ranges"][key] = answer.range_bytes
    return dict(found)
