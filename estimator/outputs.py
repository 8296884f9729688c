"""What `gpumem estimate` writes beside the estimate: traces, a snapshot, a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator import recorded_by
from estimator.trace import Trace

PICTURES = (".png", ".svg", ".html")


class OutputError(Exception):
    """Something cannot be written; the text says what and why, in one line."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where to write what; None: nowhere.

    `trace`: a file, or a folder that is there, which gets one file for each process.
    """

    trace: Path | None = None
    snapshot: Path | None = None
    plot: Path | None = None

    def check(self) -> None:
        """Finds what can go wrong before a job is run in vain.

        Raises:
            OutputError: a folder is missing, or the picture cannot be made.
        """
        for path in (self.trace, self.snapshot, self.plot):
            if path is not None and not path.absolute().parent.is_dir():
                raise OutputError(f"{path}: no such folder to write to")
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in PICTURES:
            raise OutputError(f"{self.plot}: a picture is one of {', '.join(PICTURES)}")
        if self.plot.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
            raise OutputError(
                f"{self.plot}: PNG needs matplotlib (pip install 'gpumem[plot]'); .svg and .html need nothing"
            )

    def keep_traces(self, traces: Sequence[Trace]) -> None:
        """Writes the traces as `gpumem replay` reads them.

        Raises:
            OutputError: they cannot be written.
        """
        if self.trace is None:
            return
        if self.trace.is_dir():
            for one in traces:
                _write(self.trace / f"trace-{one.pid}-{one.device}.json", _json(one))
        else:
            _write(self.trace, _json(largest(traces)))

    def write(self, traces: Sequence[Trace], title: str) -> None:
        """Writes the snapshot and the picture of the process that reserved the most.

        Raises:
            OutputError: they cannot be made or written.
        """
        if self.snapshot is not None:
            from estimator.rewind import HeldError
            from estimator.snapshot import Snapshot, dumps

            try:
                _write(self.snapshot, dumps(Snapshot.of_trace(largest(traces))))
            except HeldError as error:
                raise OutputError(f"{self.snapshot}: the trace contradicts itself: {error}") from None
        if self.plot is not None:
            from estimator.plot import draw
            from estimator.timeline import timeline

            one = largest(traces)
            course = timeline(one, _busiest_event(one))
            _write(self.plot, draw(course, title, self.plot.suffix.lower()))


def largest(traces: Sequence[Trace]) -> Trace:
    """The trace in which the most was reserved.

    Raises:
        OutputError: no process used the GPU.
    """
    used = [one for one in traces if one.events is not None and len(one.events)]
    if not used:
        raise OutputError("no process used the GPU: there is nothing to write")
    return max(used, key=lambda one: one.peaks.reserved if one.peaks else 0)


def _busiest_event(one: Trace) -> int | None:
    """The event after which the most is allocated, as in the estimate; None if no known rules tell it."""
    assert one.events is not None  # noqa: S101
    configs = recorded_by.candidates(one.alloc_conf, one.torch_version)
    replayed, config = recorded_by.find(one.events, configs)
    return replayed.busiest_event if config is not None else None


def _json(one: Trace) -> bytes:
    return one.model_dump_json(by_alias=True).encode()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
