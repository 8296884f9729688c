"""`PYTORCH_ALLOC_CONF` and `PYTORCH_CUDA_ALLOC_CONF`, read as torch reads them, with torch's errors.

Since torch 2.9 two parsers of PyTorch read the same text one after the other, those of
`c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp`; before, there was one, which was
stricter. What a version does not know is an error in it. Options of host memory (`pinned_...`) are checked
and have no effect here, nor has `throw_on_cudamalloc_oom`: the limit that it is about is seen before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from estimator.allocator.rules import INTERVALS, LARGE_BUFFER, MIB, NO_DIVISIONS, UNLIMITED, AllocatorConfig

Version = tuple[int, int]

TOKENIZER = (2, 9)  # the first version with two parsers
LATEST: Version = (2, 14)

MIN_SPLIT_MB = 20
MIN_LARGE_SEGMENT_MB = 10
MAX_REGISTER_THREADS = 128
SIZE_MAX = 2**64 - 1


class AllocConfError(ValueError):
    """torch would not start with these settings; the text is torch's own."""


@dataclass(frozen=True, slots=True)
class AllocConf:
    """What the settings say. Only the native `backend` can be replayed exactly."""

    backend: str
    config: AllocatorConfig

    @property
    def is_exact(self) -> bool:
        """Whether a replay with `config` is exact: `cudaMallocAsync` leaves the work to the driver."""
        return self.backend == "native"


def version_of(text: str | None) -> Version:
    """(2, 14) of `2.14.1+cu130`; the latest known where there is nothing to read."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else LATEST


def rules_of(version: Version) -> AllocatorConfig:
    """The default settings of a version of torch, and its rules."""
    return AllocatorConfig(
        oldest_segment_first=version >= (2, 13),
        any_pool_is_a_capture=version < (2, 13),
        whole_fraction_is_a_limit=version < (2, 10),
    )


def from_environment(environment: Mapping[str, str], version: Version = LATEST) -> AllocConf:
    """The settings of a process with these environment variables.

    Since torch 2.9 the options of the device's memory come from `PYTORCH_ALLOC_CONF` if that is set, and
    those that only CUDA has from `PYTORCH_CUDA_ALLOC_CONF` if that is set; before, all came from the latter.

    Raises:
        AllocConfError: as torch would.
    """
    new, old = environment.get("PYTORCH_ALLOC_CONF"), environment.get("PYTORCH_CUDA_ALLOC_CONF")
    if version < TOKENIZER or new is None or old is None:
        return parse((old if version < TOKENIZER or new is None else new) or "", version)
    common = _Common(version)
    common.parse(new)
    cuda = _Cuda(version)
    cuda.parse(old)
    return _both(common, cuda, version)


def parse(text: str, version: Version = LATEST) -> AllocConf:
    """The settings in `text`, as a torch of this version understands them.

    Raises:
        AllocConfError: as torch would.
    """
    if version < TOKENIZER:
        legacy = _Legacy(version)
        legacy.parse(text)
        return AllocConf(legacy.backend, replace(rules_of(version), **legacy.found))  # type: ignore[arg-type]
    common = _Common(version)
    common.parse(text)
    cuda = _Cuda(version)
    cuda.parse(text)
    return _both(common, cuda, version)


def _both(common: _Common, cuda: _Cuda, version: Version) -> AllocConf:
    found = common.found | cuda.found
    if version >= (2, 10):  # forgotten with each text, in favour of the size of large segments
        found.setdefault("max_non_split_rounding_size", found.get("large_segment_size", LARGE_BUFFER))
    return AllocConf(cuda.backend, replace(rules_of(version), **found))  # type: ignore[arg-type]


class _Tokens:
    """The text cut at `,` `:` `[` `]`, which are tokens themselves; reads numbers as C++ does."""

    def __init__(self, text: str, spaces: str) -> None:
        # blanks are left out, they separate nothing
        self.tokens = [token for token in re.split(r"([,:\[\]])", re.sub(f"[{spaces}]", "", text)) if token]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> str:
        if at >= len(self.tokens):
            raise AllocConfError("Index out of bounds in ConfigTokenizer")
        return self.tokens[at]

    def size(self, at: int) -> int:
        """`std::stoull`: digits at the beginning; a sign is allowed, and a negative number wraps."""
        match = re.match(r"([+-]?)(\d+)", self[at])
        if match is None or int(match[2]) > SIZE_MAX:
            raise AllocConfError("stoull")
        return -int(match[2]) % (SIZE_MAX + 1) if match[1] == "-" else int(match[2])

    def number(self, at: int) -> float:
        """`std::stod`."""
        return _stod(self[at])

    def flag(self, at: int) -> bool:
        """True or False, in these letters."""
        word = self[at]
        if word not in ("True", "False"):
            raise AllocConfError(
                f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{word}'"
            )
        return word == "True"


def _stod(token: str) -> float:
    match = re.match(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", token, re.IGNORECASE)
    if match is None:
        raise AllocConfError("stod")
    return float(match[0])


def _power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class _Common:
    """`AcceleratorAllocatorConfig`. Signs between tokens are skipped unread, as torch does."""

    def __init__(self, version: Version) -> None:
        self.found: dict[str, object] = {}
        self.version = version
        self._least_mb = MIN_SPLIT_MB
        self.keys: dict[str, Callable[[_Tokens, int], int]] = {
            "max_split_size_mb": self._max_split_size,
            "max_non_split_rounding_mb": self._max_non_split_rounding,
            "garbage_collection_threshold": self._threshold,
            "roundup_power2_divisions": self._roundup,
            "expandable_segments": self._expandable,
            "pinned_use_background_threads": _flag,
        }
        if version >= (2, 10):
            self.keys["large_segment_size_mb"] = self._large_segment
        if version >= (2, 13):
            self.keys |= {"pinned_max_round_threshold_mb": _size, "pinned_max_cached_size_mb": _size}

    def parse(self, text: str) -> None:
        tokens = _Tokens(text, r"\s")
        known = set(self.keys) | set(_Cuda(self.version).keys)
        if "large_segment_size_mb" in tokens.tokens and "large_segment_size_mb" in self.keys:
            self._large_segment(tokens, tokens.tokens.index("large_segment_size_mb") + 2)
        at = 0
        while at < len(tokens):
            key = tokens[at]
            if key in self.keys:
                at = self.keys[key](tokens, at + 2)
            elif key not in known:
                raise AllocConfError(f"Unrecognized key '{key}' in Accelerator allocator config.")
            else:
                at = _skip(tokens, at)
            at += 2

    def _max_split_size(self, tokens: _Tokens, at: int) -> int:
        size = tokens.size(at)
        if size < self._least_mb:
            raise AllocConfError(
                f"CachingAllocator option max_split_size_mb too small, must be >= {self._least_mb}"
            )
        self.found["max_split_size"] = min(size * MIB, UNLIMITED)
        return at

    def _max_non_split_rounding(self, tokens: _Tokens, at: int) -> int:
        size = tokens.size(at)
        if size < self._least_mb:
            raise AllocConfError(
                f"CachingAllocator option max_non_split_rounding_mb too small, must be >= {self._least_mb}"
            )
        self.found["max_non_split_rounding_size"] = min(size * MIB, UNLIMITED)
        return at

    def _large_segment(self, tokens: _Tokens, at: int) -> int:
        size = tokens.size(at)
        if size <= MIN_LARGE_SEGMENT_MB:
            raise AllocConfError(
                f"CachingAllocator option large_segment_size_mb must be > {MIN_LARGE_SEGMENT_MB} MB"
            )
        self.found["large_segment_size"] = min(size * MIB, UNLIMITED)
        self._least_mb = size  # read first, as the other limits depend on it
        return at

    def _threshold(self, tokens: _Tokens, at: int) -> int:
        threshold = tokens.number(at)
        if not 0 < threshold < 1:
            raise AllocConfError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        self.found["garbage_collection_threshold"] = threshold
        return at

    def _expandable(self, tokens: _Tokens, at: int) -> int:
        self.found["expandable_segments"] = tokens.flag(at)
        return at

    def _roundup(self, tokens: _Tokens, at: int) -> int:
        divisions = list(NO_DIVISIONS)
        if tokens[at] != "[":
            value = tokens.size(at)
            if not _power_of_2(value):
                raise AllocConfError("For roundups, the divisions has to be power of 2 ")
            self.found["roundup_power2_divisions"] = (value,) * INTERVALS
            return at
        last = 0
        first = True
        at += 1
        while at < len(tokens) and tokens[at] != "]":
            boundary_at, at = at, at + 2
            value = tokens.size(at)
            if value and not _power_of_2(value):
                raise AllocConfError(
                    "For roundups, the divisions has to be power of 2 or 0 to disable roundup "
                )
            if tokens[boundary_at] == ">":
                divisions[last + 1 :] = [value] * (INTERVALS - last - 1)
            else:
                boundary = tokens.size(boundary_at)
                if not _power_of_2(boundary):
                    raise AllocConfError("For roundups, the intervals have to be power of 2 ")
                last = min(boundary.bit_length() - 1, INTERVALS - 1)
                if first:
                    divisions[:last] = [value] * last
                    first = False
                divisions[last] = value
            if tokens[at + 1] != "]":
                at += 1
            at += 1
        if at >= len(tokens):
            raise AllocConfError("Expected closing bracket ']' in ConfigTokenizer but reached end of config")
        self.found["roundup_power2_divisions"] = tuple(divisions)
        return at


class _Cuda:
    """`CUDAAllocatorConfig`, the part that other accelerators do not have."""

    def __init__(self, version: Version) -> None:
        self.found: dict[str, object] = {}
        self.backend = "native"
        self.version = version
        self.keys: dict[str, Callable[[_Tokens, int], int]] = {
            "backend": self._backend,
            "release_lock_on_cudamalloc": _flag,
            "release_lock_on_hipmalloc": _flag,
            "pinned_use_cuda_host_register": _flag,
            "pinned_use_hip_host_register": _flag,
            "pinned_num_register_threads": self._register_threads,
        }
        if version >= (2, 10):
            self.keys |= {
                "graph_capture_record_stream_reuse": _flag,
                "pinned_reserve_segment_size_mb": self._reserve_segment,
                "per_process_memory_fraction": self._fraction,
            }
        if version >= (2, 12):
            self.keys |= {"pinned_free_catch_all": _flag, "throw_on_cudamalloc_oom": _flag}

    def parse(self, text: str) -> None:
        tokens = _Tokens(text, r"\s")
        known = set(self.keys) | set(_Common(self.version).keys)
        at = 0
        while at < len(tokens):
            key = tokens[at]
            if key in self.keys:
                at = self.keys[key](tokens, at + 2)
            elif key not in known:
                raise AllocConfError(f"Unrecognized key '{key}' in CUDA allocator config.")
            else:
                at = _skip(tokens, at)
            at += 2

    def _backend(self, tokens: _Tokens, at: int) -> int:
        if tokens[at] not in ("native", "cudaMallocAsync"):
            raise AllocConfError("Unknown allocator backend, options are native and cudaMallocAsync")
        self.backend = tokens[at]
        return at

    def _register_threads(self, tokens: _Tokens, at: int) -> int:
        threads = tokens.size(at)
        if not _power_of_2(threads):
            raise AllocConfError(f"Number of register threads has to be power of 2, got {threads}")
        if threads > MAX_REGISTER_THREADS:
            raise AllocConfError(
                "Number of register threads should be less than or equal to "
                f"{MAX_REGISTER_THREADS}, got {threads}"
            )
        return at

    def _reserve_segment(self, tokens: _Tokens, at: int) -> int:
        if tokens.size(at) == 0:
            raise AllocConfError("Pinned reserve segment size has to be greater than 0")
        return at

    def _fraction(self, tokens: _Tokens, at: int) -> int:
        fraction = tokens.number(at)
        if math.isnan(fraction) or not 0 <= fraction <= 1:
            raise AllocConfError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        self.found["memory_fraction"] = fraction
        return at


def _flag(tokens: _Tokens, at: int) -> int:
    tokens.flag(at)
    return at


def _size(tokens: _Tokens, at: int) -> int:
    tokens.size(at)
    return at


def _skip(tokens: _Tokens, at: int) -> int:
    """The last token of the value of the key at `at`."""
    at += 2
    if tokens[at] != "[":
        return at
    while at < len(tokens) and tokens[at] != "]":
        at += 1
    if at >= len(tokens):
        raise AllocConfError("Expected closing bracket ']' in ConfigTokenizer but reached end of config")
    return at


class _Legacy:
    """The one parser that there was before torch 2.9."""

    def __init__(self, version: Version) -> None:
        self.found: dict[str, object] = {}
        self.backend = "native"
        self._is_strict = version >= (2, 8)
        self._divisions = "divisions" if self._is_strict else "divisons"
        self.keys: dict[str, Callable[[list[str], int], None]] = {
            "max_split_size_mb": self._max_split_size,
            "garbage_collection_threshold": self._threshold,
            "backend": self._backend,
            "expandable_segments": self._expandable,
            "release_lock_on_cudamalloc": _legacy_flag("release_lock_on_cudamalloc"),
            "release_lock_on_hipmalloc": _legacy_flag("release_lock_on_cudamalloc"),
            "pinned_use_cuda_host_register": _legacy_flag("pinned_use_cuda_host_register"),
            "pinned_use_hip_host_register": _legacy_flag("pinned_use_cuda_host_register"),
            "pinned_num_register_threads": self._register_threads,
        }
        if version >= (2, 6):
            self.keys["max_non_split_rounding_mb"] = self._max_non_split_rounding
            self.keys["pinned_use_background_threads"] = _legacy_flag("pinned_use_background_threads")

    def parse(self, text: str) -> None:
        tokens = _Tokens(text, " ").tokens
        at = 0
        while at < len(tokens):
            key = tokens[at]
            if key == "roundup_power2_divisions":
                at = self._roundup(tokens, at)
            elif key in self.keys:
                _expect(tokens, at + 1, ":")
                at += 2
                if at >= len(tokens):
                    raise AllocConfError(_missing(key))
                self.keys[key](tokens, at)
            else:
                raise AllocConfError(f"Unrecognized CachingAllocator option: {key}")
            at += 1
            if at < len(tokens):
                _expect(tokens, at, ",")
                at += 1

    def _max_split_size(self, tokens: list[str], at: int) -> None:
        size = _stoi(tokens[at])
        if size <= MIN_SPLIT_MB:
            raise AllocConfError(
                f"CachingAllocator option max_split_size_mb too small, must be > {MIN_SPLIT_MB}"
            )
        self.found["max_split_size"] = min(size * MIB, UNLIMITED)

    def _max_non_split_rounding(self, tokens: list[str], at: int) -> None:
        size = _stoi(tokens[at])
        if size <= MIN_SPLIT_MB:
            raise AllocConfError(
                f"CachingAllocator option max_non_split_rounding_mb too small, must be > {MIN_SPLIT_MB}"
            )
        self.found["max_non_split_rounding_size"] = min(size * MIB, UNLIMITED)

    def _threshold(self, tokens: list[str], at: int) -> None:
        threshold = _stod(tokens[at])
        if not threshold > 0:
            raise AllocConfError("garbage_collect_threshold too small, set it 0.0~1.0")
        if not threshold < 1:
            raise AllocConfError("garbage_collect_threshold too big, set it 0.0~1.0")
        self.found["garbage_collection_threshold"] = threshold

    def _backend(self, tokens: list[str], at: int) -> None:
        if tokens[at] not in ("native", "cudaMallocAsync"):
            raise AllocConfError("Unknown allocator backend, options are native and cudaMallocAsync")
        self.backend = tokens[at]

    def _expandable(self, tokens: list[str], at: int) -> None:
        _legacy_flag("expandable_segments")(tokens, at)
        self.found["expandable_segments"] = tokens[at] == "True"

    def _register_threads(self, tokens: list[str], at: int) -> None:
        threads = _stoi(tokens[at])
        if not _power_of_2(threads):
            raise AllocConfError("Number of register threads has to be power of 2 ")
        if threads > MAX_REGISTER_THREADS:
            raise AllocConfError(
                f"Number of register threads should be less than or equal to {MAX_REGISTER_THREADS}"
            )

    def _roundup(self, tokens: list[str], at: int) -> int:
        _expect(tokens, at + 1, ":")
        at += 2
        if at >= len(tokens):
            raise AllocConfError(_missing("roundup_power2_divisions"))
        if tokens[at] != "[":
            value = _stoi(tokens[at])
            if not _power_of_2(value):
                raise AllocConfError(f"For roundups, the {self._divisions} has to be power of 2 ")
            self.found["roundup_power2_divisions"] = (value,) * INTERVALS
            return at
        divisions = list(NO_DIVISIONS)
        last = 0
        first = True
        at += 1
        while at < len(tokens) and tokens[at] != "]":
            boundary = tokens[at]
            _expect(tokens, at + 1, ":")
            at += 2
            if at >= len(tokens):
                raise AllocConfError("Error parsing roundup_power2_divisions value")
            value = _stoi(tokens[at])
            if value and not _power_of_2(value):
                raise AllocConfError(
                    f"For roundups, the {self._divisions} has to be power of 2 or 0 to disable roundup "
                )
            if boundary == ">":
                divisions[last:] = [value] * (INTERVALS - last)
            else:
                size = _stoi(boundary)
                if not _power_of_2(size):
                    raise AllocConfError("For roundups, the intervals have to be power of 2 ")
                last = min(size.bit_length() - 1, INTERVALS - 1)
                if first:
                    divisions[:last] = [value] * last
                    first = False
                divisions[last] = value
            at += 1
            if (at < len(tokens) or self._is_strict) and tokens[at : at + 1] != ["]"]:
                _expect(tokens, at, ",")
                at += 1
        self.found["roundup_power2_divisions"] = tuple(divisions)
        return at


def _legacy_flag(name: str) -> Callable[[list[str], int], None]:
    def check(tokens: list[str], at: int) -> None:
        if tokens[at] not in ("True", "False"):
            raise AllocConfError(f"Expected a single True/False argument for {name}")

    return check


def _expect(tokens: list[str], at: int, sign: str) -> None:
    if at >= len(tokens) or tokens[at] != sign:
        raise AllocConfError(f"Error parsing CachingAllocator settings, expected {sign}")


def _missing(key: str) -> str:
    if key == "backend":
        return "Error parsing backend value"
    if key in ("expandable_segments", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc"):
        return f"Expected a single True/False argument for {key.replace('hip', 'cuda')}"
    return f"Error, expecting {key.replace('hip', 'cuda')} value"


def _stoi(token: str) -> int:
    match = re.match(r"[+-]?\d+", token)
    if match is None or not -(2**31) <= int(match[0]) < 2**31:
        raise AllocConfError("stoi")
    return int(match[0]) % (SIZE_MAX + 1)  # kept in a size_t
