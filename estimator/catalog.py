"""The GPU catalogue (`gpus.toml`): what is known about each GPU model, and where each number comes from."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

FILE_NAME = "gpus.toml"
COMMON = "outside"  # the table of what holds for all GPUs


class CatalogError(Exception):
    """A GPU is not known, or the catalogue cannot be used; the text says what to do."""


class Source(BaseModel):
    """Where each number of a GPU comes from; `context` is "estimate" unless it was measured or published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: str
    usable: str
    compute_capability: str
    sm_count: str
    context: str
    kernels: str = ""
    cudnn: str = ""
    nccl: str = ""
    convolutions: str = ""
    mig: str = ""


class Convolutions(BaseModel):
    """From how many positions of an image on cuDNN's workspace holds copies of the tensors; 0: never.

    The defaults are fitted (docs/estimate.md).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward_positions: Annotated[int, Field(ge=0)] = 64 * 64
    data_positions: Annotated[int, Field(ge=0)] = 0
    filter_positions: Annotated[int, Field(ge=0)] = 20 * 20


class Slice(BaseModel):
    """One profile of MIG: a part of a GPU with memory and multiprocessors of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_gib: Annotated[float, Field(gt=0)]
    sm_count: Annotated[int, Field(gt=0)]


Mib = Annotated[float, Field(ge=0)]


class GPU(BaseModel):
    """One GPU model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(description="its name in the catalogue")
    name: str = Field(description="as NVML and PyTorch print it")
    match: tuple[str, ...] = Field((), description="patterns of other names, normalised")
    memory_mib: Annotated[int, Field(gt=0)]
    usable_gib: Annotated[float, Field(gt=0)]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    sm_count: Annotated[int, Field(gt=0)]
    context_mib: Annotated[int, Field(ge=0)]
    context_mib_by_cuda: Mapping[Annotated[str, Field(pattern=r"^\d+$")], Annotated[int, Field(ge=0)]] = {}
    kernels_mib: Mib = 0
    cudnn_mib: Mib = 0
    nccl_channels: Annotated[int, Field(ge=0)] = 0
    nccl_mib_per_channel: Mib = 0
    nccl_mib_per_channel_of_two: Mib = 0
    convolutions: Convolutions = Convolutions()
    mig: Mapping[str, Slice] = {}
    source: Source

    @property
    def memory_bytes(self) -> int:
        """The whole board, as nvidia-smi prints it."""
        return self.memory_mib * 1024**2

    @property
    def usable_bytes(self) -> int:
        """What CUDA offers to programs (the total of `cudaMemGetInfo`)."""
        return int(self.usable_gib * 1024**3)

    @property
    def context_bytes(self) -> int:
        """What a process takes that has done nothing yet: the CUDA context."""
        return self.context_mib * 1024**2

    def context_bytes_under(self, cuda: str | None) -> int:
        """The same under a version of CUDA, such as "13.0", if it was measured apart."""
        major = (cuda or "").partition(".")[0]
        return self.context_mib_by_cuda.get(major, self.context_mib) * 1024**2

    @property
    def context_is_estimate(self) -> bool:
        """Whether nobody measured `context_bytes` on this model."""
        return self.source.context.startswith("estimate")

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, major and minor."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    def is_called(self, name: str) -> bool:
        """Whether a normalised name means this model."""
        return name in (self.key, normalised(self.name)) or any(fnmatchcase(name, p) for p in self.match)


_TABLE: TypeAdapter[dict[str, dict[str, object]]] = TypeAdapter(dict[str, dict[str, object]])
_PROFILE = re.compile(r"(?:^|[-_:. ])(?:mig[-_ ])?(\d+g\.\d+gb)(?:\+\S+)?$", re.IGNORECASE)
_MIG = re.compile(r"(^|-)\d+g-\d+gb?($|-)|^mig-")


def normalised(name: str) -> str:
    """A name as the patterns are written: "Tesla V100-SXM2-16GB" and "tesla_v100-sxm2-16gb" are the same."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").split("-")
    return "-".join(word for word in words if word not in ("nvidia", "tesla", "geforce"))


@dataclass(frozen=True, slots=True)
class Catalog:
    """All known GPU models by their names in the catalogue."""

    gpus: Mapping[str, GPU]

    def find(self, name: str) -> GPU:
        """The GPU of that name: its name here, its name in NVML, or a GRES type such as `a100_80gb`.

        A part of a GPU (MIG) is named by its profile, behind the name of the GPU where that is not clear:
        `a100-80gb:1g.10gb`, `a100_3g.20gb`.

        Raises:
            CatalogError: no GPU, or more than one, has that name.
        """
        wanted = normalised(name)
        known = ", ".join(self.gpus)
        if profile := _PROFILE.search(name):
            return self._slice(name, name[: profile.start()], profile[1].lower())
        if _MIG.search(wanted):
            raise CatalogError(f"{name}: name a part of a GPU (MIG) by its profile, such as h100:1g.10gb")
        found = [gpu for gpu in self.gpus.values() if gpu.is_called(wanted)]
        if not found:
            raise CatalogError(f"{name}: unknown GPU; known: {known} (add yours to {FILE_NAME})")
        if len(found) > 1:
            raise CatalogError(f"{name}: which one? {' or '.join(gpu.key for gpu in found)}")
        return found[0]

    def _slice(self, name: str, board: str, profile: str) -> GPU:
        """The part of a board, as a GPU of its own; its context is taken to be that of the whole board."""
        wanted = normalised(board)
        found = [
            gpu for gpu in self.gpus.values() if profile in gpu.mig and (not wanted or gpu.is_called(wanted))
        ]
        if not found:
            profiles = sorted({f"{gpu.key}:{one}" for gpu in self.gpus.values() for one in gpu.mig})
            raise CatalogError(f"{name}: no such part of a GPU (MIG) is known; known: {', '.join(profiles)}")
        if len(found) > 1:
            raise CatalogError(
                f"{name}: a part of which GPU? {' or '.join(f'{gpu.key}:{profile}' for gpu in found)}"
            )
        whole, part = found[0], found[0].mig[profile]
        source = whole.source.model_copy(
            update={
                "memory": whole.source.mig,
                "usable": whole.source.mig,
                "sm_count": whole.source.mig,
                "context": f"estimate: that of the whole board ({whole.source.context})",
            }
        )
        return whole.model_copy(
            update={
                "key": f"{whole.key}:{profile}",
                "name": f"{whole.name} MIG {profile}",
                "match": (),
                "memory_mib": int(part.memory_gib * 1024),
                "usable_gib": int(part.memory_gib * 1024) / 1024,
                "sm_count": part.sm_count,
                "mig": {},
                "source": source,
            }
        )


def _filled(entry: dict[str, object], common: dict[str, object]) -> dict[str, object]:
    """An entry with the values (and their sources) that all GPUs have in common where it has none."""
    source, shared = entry.get("source"), common.get("source")
    filled = {**{name: value for name, value in common.items() if name != "source"}, **entry}
    if isinstance(source, dict) and isinstance(shared, dict):
        filled["source"] = {**shared, **source}
    return filled


def parse(text: str, source: str) -> Catalog:
    """Checks the text of a catalogue; `source` is named in errors.

    Raises:
        CatalogError: it is not TOML, or a number or its source is missing or makes no sense.
    """
    try:
        table = _TABLE.validate_python(tomllib.loads(text))
        common = table.pop(COMMON, {})
        gpus = {
            key: GPU.model_validate({"key": key, **_filled(entry, common)}) for key, entry in table.items()
        }
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CatalogError(f"{source}: {where}: {first['msg']}") from None
    for gpu in gpus.values():
        if not gpu.context_bytes < gpu.usable_bytes <= gpu.memory_bytes:
            raise CatalogError(f"{source}: {gpu.key}: context < usable <= memory does not hold")
    return Catalog(gpus)


def candidates(configured: Path | None) -> list[Path]:
    """Where the catalogue is looked for, in this order: only `configured` if that is given."""
    if configured is not None:
        return [configured]
    return [
        Path(__file__).parents[1] / "etc" / FILE_NAME,
        Path("/etc/gpumem") / FILE_NAME,
        Path(sys.prefix) / "share" / "gpumem" / FILE_NAME,
    ]


def load(configured: Path | None = None) -> Catalog:
    """Reads the catalogue from `configured` (the setting `estimate.gpus_file`), else the installed one.

    Raises:
        CatalogError: there is none, or it cannot be used.
    """
    paths = candidates(configured)
    for path in paths:
        try:
            return parse(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogError(f"{path}: cannot be read: {error}") from None
    raise CatalogError(
        f"no GPU catalogue in {', '.join(map(str, paths))}; set estimate.gpus_file in gpumem.toml"
    )
