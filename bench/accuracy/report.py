"""The results as text (docs/accuracy.md), picture (docs/accuracy.svg) and data (accuracy.json)."""

from __future__ import annotations

import statistics
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.accuracy import fit, plot
from bench.accuracy.jobs import MIB
from bench.accuracy.metrics import Answer, Metrics, measure
from bench.accuracy.peers.seconds import seconds_of
from bench.accuracy.rows import BETTER, FITTED, OURS, WITH_MARGIN, Row, metrics_of

BEGIN, END = "## Against measured jobs", "## Not measured yet"
REMARKS = Path(__file__).parent / "remarks.toml"
OFF, WORST = 0.03, 20
LARGE_BATCH = 32
TITLES = {
    "xmem": "xMem's rows: CNNs and transformers on RTX 3060, RTX 4060 and A100",
    "timm": "timm models on A100 40 GB, models never fitted on",
    "mlp": "random MLPs on A100 40 GB, models never fitted on",
    "own": "our own ground truth",
}
HEADER = (
    "| estimator | jobs | failed | median error | mean | 95th percentile | signed median | too low "
    "| conserved | full card told | median with a constant | seconds |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows that count: where a constant is fitted, those of the other half of the models."""
    return [row for row in rows if row.held_out]


def with_constant(rows: Sequence[Row], estimator: str, cards: Mapping[str, int]) -> float | None:
    """The median error of a peer that is given a constant for what lies beside the allocator, as ours is.

    It is fitted on the same half of the models and judged on the other.
    """
    known = [(row, said) for row in rows if (said := row.answers.get(estimator)) is not None]
    points = [
        fit.Point(row.job.model, row.job.truth_bytes, said) for row, said in known if not row.job.capped
    ]
    if not any(fit.is_fitted(point.model) for point in points):
        return None
    constant = fit.beside_allocator(points)
    return measure(
        [
            Answer(row.job.truth_bytes, said + constant, cards[row.job.gpu], row.job.capped)
            for row, said in known
            if row.held_out
        ]
    ).median


def table(rows: Sequence[Row], cards: Mapping[str, int]) -> str:
    """One data set as Markdown: a line for each estimator, the best median error first."""
    found = metrics_of(judged(rows), cards)
    fitted = rows[0].job.dataset in FITTED
    names = sorted(found, key=lambda name: (name != OURS, found[name].median or 0.0))
    own_seconds = [row.raw.seconds for row in rows if row.raw and row.raw.reserved is not None]
    lines = [HEADER]
    for name in names:
        constant = with_constant(rows, name, cards) if fitted and not name.startswith(OURS) else None
        taken = statistics.median(own_seconds) if name == OURS and own_seconds else seconds_of(name)
        seconds = "" if taken is None else f"{taken:.1f}"
        lines.append(_line(name, found[name], _percent(constant), seconds))
    return "\n".join(lines)


def _line(name: str, metrics: Metrics, constant: str, seconds: str) -> str:
    shown = f"**{name}**" if name == OURS else name
    signed = "" if metrics.bias is None else f"{metrics.bias:+.1%}"
    cells = [
        shown, str(metrics.rows), str(metrics.failed), _percent(metrics.median), _percent(metrics.mean),
        _percent(metrics.p95), signed, _percent(metrics.too_low), _percent(metrics.conserved),
        _percent(metrics.told_full), constant,
        seconds,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.1%}".replace("%", " %")


def off_rows(rows: Sequence[Row], worst: int | None = None) -> str:
    """The rows that we are off by more than `OFF`, or failed on, as Markdown; the worst first."""
    off = [row for row in judged(rows) if not row.job.capped and (row.error is None or abs(row.error) > OFF)]
    off.sort(key=lambda row: -abs(row.error) if row.error is not None else -1e9)
    remarks = read_remarks(REMARKS)
    lines = [f"| job | measured, MiB | {OURS}, MiB | error | xMem's error | why |\n|---|---|---|---|---|---|"]
    for row in off[:worst]:
        job = row.job
        said, published = row.answers[OURS], job.published.get("xMem")
        lines.append(
            f"| `{job.name}` | {job.truth_bytes / MIB:,.0f} | {'' if said is None else f'{said / MIB:,.0f}'} "
            f"| {'failed' if row.error is None else f'{row.error:+.1%}'} "
            f"| {'' if published is None else f'{published / job.truth_bytes - 1:+.1%}'} "
            f"| {remark_for(row, remarks)} |"
        )
    return "\n".join(lines) if off else "None."


def read_remarks(file: Path) -> list[tuple[str, str]]:
    """(pattern of "data set/job", why), in the order of the file."""
    if not file.exists():
        return []
    return [(entry["match"], entry["why"]) for entry in tomllib.loads(file.read_text())["remark"]]


def remark_for(row: Row, remarks: Sequence[tuple[str, str]]) -> str:
    """Why a row is off, as far as it is known."""
    if row.raw is not None and row.raw.reserved is None:
        return row.raw.reason.replace("|", "/").splitlines()[0][:120] if row.raw.reason else "failed"
    if row.raw is not None and not row.raw.fits:
        return "said to need more than the card offers"
    name = f"{row.job.dataset}/{row.job.name}"
    return next((why for pattern, why in remarks if fnmatchcase(name, pattern)), "not known")


def picture(rows: Mapping[str, Sequence[Row]], cards: Mapping[str, int]) -> str:
    """All data sets as SVG."""
    panels: dict[str, dict[str, list[float]]] = {}
    for dataset, those in rows.items():
        found = metrics_of(judged(those), cards)
        lines: dict[str, list[float]] = {}
        for name in sorted(found, key=lambda name: (name != OURS, found[name].median or 0.0)):
            if name in (WITH_MARGIN, BETTER):
                continue
            errors = [
                error
                for row in judged(those)
                if name in row.answers and (error := row.compared(name, cards[row.job.gpu]).error) is not None
            ]
            if errors:
                lines[name] = errors
        panels[TITLES[dataset]] = lines
    return plot.draw(panels, OURS)


def section(rows: Mapping[str, Sequence[Row]], cards: Mapping[str, int], versions: Mapping[str, str]) -> str:
    """What `docs/accuracy.md` says of measured jobs."""
    out = [BEGIN, INTRODUCTION.read_text().strip()]
    for dataset, those in rows.items():
        out += [
            f"### {TITLES[dataset]}",
            textwrap.fill(PREFACES[dataset](those, versions.get(dataset, "")), 110, break_on_hyphens=False),
            table(those, cards),
        ]
        if dataset == "timm":
            large = [row for row in those if row.job.batch >= LARGE_BATCH]
            out += [f"Of these, batch {LARGE_BATCH} and more:", table(large, cards)]
        listed = WORST if dataset in FITTED else None
        heading = f"The {WORST} worst rows" if listed else f"Every row off by more than {OFF:.0%}"
        out += [f"{heading.replace('%', ' %')}:", off_rows(those, listed)]
    return "\n\n".join(out)


INTRODUCTION = Path(__file__).parent / "introduction.md"


def _xmem(rows: Sequence[Row], version: str) -> str:
    unknown = sum(not row.job.zero_grad_known for row in rows)
    return (
        f"torch {version}, the version of the authors, and transformers 4.49.0, of the same months: theirs "
        "is not published, and with 4.56 GPT-Neo, T5 and GPT-2 came out 2 to 4 % below the truth, with "
        "4.49 within 1 %. github.com/Stone-ResearchLife/xMem. The truth is the rise of "
        "NVML's reading above a first "
        "one, in which the CUDA context is: nothing is added to the allocator's reserved bytes. It is noisy "
        f"by some 2 %: the same network differs by as much between the two cards. {unknown} rows do not say "
        "where gradients are set to None, at the start of an iteration or before the backward pass: the "
        "start is taken, a rule fixed in advance; *better of two readings* shows what is lost by that."
    )


def _gpumemnet(rows: Sequence[Row], version: str) -> str:
    models = {row.job.model for row in rows}
    outside = rows[0].outside / MIB if rows else 0
    return (
        f"torch {version}; github.com/itu-rad/GPUMemNet, nvidia-smi's reading. {len(rows)} rows of "
        f"{len(models)} models were run on the fake device's allocator; {outside:,.0f} MiB beside it "
        "were fitted. The version of PyTorch is not published."
    )


def _timm(rows: Sequence[Row], version: str) -> str:
    return (
        f"{_gpumemnet(rows, version)} Nor is the script: timm's `train.py` with its defaults is taken, in "
        "fp32. Models are taken in a seeded random order, as many as were run. What `cudnn.benchmark` "
        "finds fastest on hardware is not known."
    )


def _own(rows: Sequence[Row], version: str) -> str:
    return f"torch {version}; `python -m bench.groundtruth`."


PREFACES = {"xmem": _xmem, "timm": _timm, "mlp": _gpumemnet, "own": _own}


def replaced(document: str, text: str) -> str:
    """The document with its section on measured jobs replaced, or put before what is not measured yet."""
    end = document.index(END) if END in document else len(document)
    begin = document.index(BEGIN) if BEGIN in document else end
    return f"{document[:begin].rstrip()}\n\n{text}\n\n{document[end:]}"


def as_json(
    rows: Mapping[str, Sequence[Row]],
    cards: Mapping[str, int],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Every row and the metrics; bytes, and errors as parts."""
    return {
        "torch": dict(versions),
        "metrics": {
            dataset: {name: asdict(found) for name, found in metrics_of(judged(those), cards).items()}
            for dataset, those in rows.items()
        },
        "beside_allocator": {
            dataset: those[0].outside for dataset, those in rows.items() if dataset in FITTED and those
        },
        "rows": [
            {
                "dataset": row.job.dataset, "job": row.job.name, "gpu": row.job.gpu,
                "truth": row.job.truth_bytes, "capped": row.job.capped, "held_out": row.held_out,
                "allocated": row.raw and row.raw.allocated, "reserved": row.raw and row.raw.reserved,
                "outside": row.outside, "fits": row.raw and row.raw.fits,
                "seconds": row.raw and row.raw.seconds, "answers": row.answers,
            }
            for those in rows.values()
            for row in those
        ],
    }  # fmt: skip
