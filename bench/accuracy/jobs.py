"""The measured jobs: what others published, and our own ground truth, each as one `Job`.

The files of others are read from a folder that the caller names; none of them is part of this repository:

- `xmem_rows.csv`: github.com/Stone-ResearchLife/xMem, the rise of NVML's reading of the whole GPU
- `timm_a100.csv`, `mlp_a100.csv`: github.com/itu-rad/GPUMemNet, the peak that nvidia-smi showed
- our own: JSON lines that `python -m bench.groundtruth` writes
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from estimator import catalog

MIB = 1024**2
ROOT = Path(__file__).parent.parent.parent
SCRIPTS = "bench/accuracy/scripts"
OWN_RESULTS = ROOT / "bench" / "groundtruth" / "results"
SETS = ("xmem", "timm", "mlp", "own")
A100_GPU = "a100-40gb"
A100_CAPPED_MIB = 38_000  # a run that lacked memory shows what it had until then
SAME_PEAK = 0.001
XMEM_GPUS = {"RTX3060": "rtx-3060", "RTX4060": "rtx-4060", "A100-SXM4-40GB": "a100-40gb"}
XMEM_NETWORKS = {  # torchvision's names of the convolution networks
    "ConvNeXtBase": "convnext_base",
    "ConvNeXtTiny": "convnext_tiny",
    "MnasNet": "mnasnet1_0",
    "MobeNetV3Large": "mobilenet_v3_large",
    "MobeNetV3Small": "mobilenet_v3_small",
    "MobileNetV2": "mobilenet_v2",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
ZERO_GRAD = {"0": "start", "1": "before-backward", "2": "after-step"}
MLP_SWITCHES = {"True": True, "False": False}


class RowsError(Exception):
    """A file of rows cannot be read; the text names the file and says what is wrong."""


@dataclass(frozen=True)
class Job:
    """One measured training job.

    `published` has the answers of other estimators in bytes as their authors gave them, by estimator.
    `command` is a script, from the top of this repository, and its arguments: what follows the interpreter.
    `capped` says that the run met the limit of the card, or seems to: its truth is what it had until then.
    `zero_grad_known` is false where the source does not tell where gradients are set to None.
    """

    dataset: str
    name: str  # unique in its data set
    model: str
    batch: int
    optimizer: str
    gpu: str  # key of the GPU catalogue
    truth_bytes: int
    published: Mapping[str, int]
    command: tuple[str, ...]
    capped: bool
    zero_grad_known: bool = True


def read(folder: Path, sets: Iterable[str] = SETS) -> list[Job]:
    """The jobs of the named data sets, those of other people from `folder`.

    Raises:
        RowsError: a file is missing, or a row has not what is expected.
    """
    readers = {
        "xmem": lambda: xmem_jobs(_rows(folder / "xmem_rows.csv")),
        "timm": lambda: timm_jobs(_rows(folder / "timm_a100.csv")),
        "mlp": lambda: mlp_jobs(_rows(folder / "mlp_a100.csv")),
        "own": lambda: own_jobs(sorted(OWN_RESULTS.glob("*.jsonl"))),
    }
    found = []
    for name in sets:
        try:
            found += readers[name]()
        except (KeyError, ValueError) as error:
            raise RowsError(f"{name}: not as expected: {error!r}") from None
    return found


def xmem_jobs(rows: Iterable[Mapping[str, str]]) -> list[Job]:
    """xMem's rows: convolution networks on CIFAR-10 and transformers on wikitext-2."""
    return [_xmem_job(row) for row in rows]


def _xmem_job(row: Mapping[str, str]) -> Job:
    model, optimizer = row["model"], row["optimizer"]
    known = row["zero_grad_mode"] in ZERO_GRAD
    options = (
        "--batch", row["batch_size"], "--optimizer", optimizer,
        "--zero-grad", ZERO_GRAD.get(row["zero_grad_mode"], "start"),
    )  # fmt: skip
    if model in XMEM_NETWORKS:
        script, argument = "xmem_cnn.py", XMEM_NETWORKS[model]
    else:
        script, argument = "xmem_transformer.py", model
    return Job(
        dataset="xmem",
        name=row["run_dir"],
        model=argument,
        batch=int(row["batch_size"]),
        optimizer=optimizer,
        gpu=XMEM_GPUS[row["gpu"]],
        truth_bytes=int(row["ground_nvml_peak_bytes"]),
        published={"xMem": int(row["xmem_estimate_bytes"])},
        command=(f"{SCRIPTS}/{script}", argument, *options),
        capped=row["real_oom"] == "true",
        zero_grad_known=known,
    )


def timm_jobs(rows: Iterable[Mapping[str, str]]) -> list[Job]:
    """GPUMemNet's rows of timm models, each at several batch sizes, and what FakeTensor said of them."""
    peaks: dict[str, dict[int, float]] = defaultdict(dict)
    said: dict[tuple[str, int], int] = {}
    for row in rows:
        batch = int(row["Batch Size"])
        model = row["Filename"].removesuffix(".out").removesuffix(f"_{batch}")
        peaks[model][batch] = float(row["Max GPU Memory (MiB)"])
        said[model, batch] = int(float(row["Last Numeric Value"]) * MIB)
    return [
        Job(
            dataset="timm",
            name=f"{model}_{batch}",
            model=model,
            batch=batch,
            optimizer="SGD",
            gpu=A100_GPU,
            truth_bytes=int(peak_mib * MIB),
            published={"FakeTensor (GPUMemNet)": said[model, batch]},
            command=(f"{SCRIPTS}/timm_train.py", model, "--batch", str(batch)),
            capped=ended_early(peaks[model], batch),
        )
        for model in sorted(peaks)
        for batch, peak_mib in sorted(peaks[model].items())
    ]


def ended_early(peaks_mib: Mapping[int, float], batch: int) -> bool:
    """Whether the run of `batch` seems to have been ended by lack of memory, from the peaks at all batches.

    The source keeps no exit states. A run is taken to have ended early if it came near the card's limit;
    if its peak is that of another batch, so that it never used its batch; or if it lies below a smaller
    batch's while the growth up to that one leads beyond the limit. So has every run of a larger batch.
    """
    return any(_ended_first(peaks_mib, at) for at in peaks_mib if at <= batch)


def _ended_first(peaks_mib: Mapping[int, float], batch: int) -> bool:
    """The same of one batch, whatever became of smaller ones."""
    peak = peaks_mib[batch]
    if peak >= A100_CAPPED_MIB:
        return True
    if any(abs(peak / other - 1) < SAME_PEAK for at, other in peaks_mib.items() if at != batch):
        return True
    smaller = sorted(at for at in peaks_mib if at < batch)
    if not smaller or peak >= 0.98 * max(peaks_mib[at] for at in smaller):
        return False
    if len(smaller) == 1:
        return peaks_mib[smaller[0]] >= A100_CAPPED_MIB / 1.8
    slopes = [(peaks_mib[high] - peaks_mib[low]) / (high - low) for low, high in pairwise(smaller)]
    return peaks_mib[smaller[0]] + max(slopes) * (batch - smaller[0]) >= A100_CAPPED_MIB


def mlp_jobs(rows: Iterable[Mapping[str, str]]) -> list[Job]:
    """GPUMemNet's rows of random MLPs; a row's name is its whole configuration."""
    return [_mlp_job(row) for row in rows]


def _mlp_job(row: Mapping[str, str]) -> Job:
    name = row["Filename"].removesuffix(".out")
    words: dict[str, list[str]] = defaultdict(list)
    key = ""
    for part in name.split("_"):  # values such as leaky_relu have underscores, too
        head, colon, value = part.partition(":")
        if colon:
            key = head
            words[key].append(value)
        else:
            words[key][-1] += f"_{part}"
    rate, dropout = words["dropout"]
    command = [
        f"{SCRIPTS}/mlp_train.py",
        *("--input", words["input"][0], "--output", words["output"][0], "--depth", words["depth"][0]),
        *("--architecture", words["arch"][0], "--batch", words["batch"][0]),
        *("--activation", words["act"][0]),
    ]
    if MLP_SWITCHES[dropout]:
        command += ["--dropout", rate]
    if MLP_SWITCHES[words["batchnorm"][0]]:
        command.append("--batch-norm")
    return Job(
        dataset="mlp",
        name=name,
        model=f"mlp-{words['arch'][0]}-{words['depth'][0]}",
        batch=int(words["batch"][0]),
        optimizer="Adam",
        gpu=A100_GPU,
        truth_bytes=int(float(row["Max GPU Memory (MiB)"]) * MIB),
        published={},
        command=tuple(command),
        capped=False,
    )


def own_jobs(files: Iterable[Path]) -> list[Job]:
    """What `python -m bench.groundtruth` measured: the rows that ended well and have a peak of NVML."""
    known = catalog.load()
    found = []
    for file in files:
        for text in file.read_text().splitlines():
            line = json.loads(text) if text.strip() else {}
            if line.get("status") == "ok" and "stages" in line and _own_truth(line):
                found.append(_own_job(line, known.find(str(line["gpu"])).key, file.stem))
    return found


def _own_truth(line: Mapping[str, Any]) -> int:
    """NVML's peak of the process (bytes), or of the whole GPU where that is not known; 0 where neither is."""
    keys = ("nvml_peak_accounted", "nvml_peak_sampled", "nvml_device_rise")
    return next((int(line[key]) for key in keys if line.get(key)), 0)


def _own_job(line: Mapping[str, Any], gpu: str, source: str) -> Job:
    from bench.groundtruth import jobs

    job = jobs.find(line["job"])
    return Job(
        dataset="own",
        name=f"{source}/{job.name}",
        model=job.model,
        batch=job.batch,
        optimizer=job.optimizer,
        gpu=gpu,
        truth_bytes=_own_truth(line),
        published={},
        command=("-m", "bench.groundtruth.train", job.name),
        capped=False,
    )


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as text:
            return list(csv.DictReader(text))
    except FileNotFoundError:
        raise RowsError(f"{file}: there is no such file; name the folder that has the public rows") from None
