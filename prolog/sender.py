"""The last resort: a measurement that no folder takes waits in memory, for a folder or the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prolog.spool import Deliver, Malformed, Spool, SpoolProblem, Undelivered

if TYPE_CHECKING:
    from history.wire import Measurement

KEEP_TRYING_S = 3600.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0


def keep_trying(
    measurement: Measurement,
    spool: Spool,
    deliver: Deliver,
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    limit_s: float = KEEP_TRYING_S,
) -> bool:
    """Tries the service, then the folders, again and again; whether one of them took it within `limit_s`."""
    pause_s = FIRST_PAUSE_S
    until = clock() + limit_s
    while clock() < until:
        if _sent(measurement, deliver) or _stored(measurement, spool):
            return True
        sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    return False


def _sent(measurement: Measurement, deliver: Deliver) -> bool:
    try:
        return measurement.id in deliver([measurement])
    except (Undelivered, Malformed):
        return False


def _stored(measurement: Measurement, spool: Spool) -> bool:
    try:
        spool.store(measurement)
    except SpoolProblem:
        return False
    return True
