"""Measurements to the service, `POST /v1/measurements`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prolog.spool import Deliver, Malformed, Undelivered

if TYPE_CHECKING:
    from history.wire import Measurement

_MALFORMED = {400, 413, 422}


def to_service(service: str, timeout_s: float, munge_socket: Path | None) -> Deliver:
    """Sends to `unix:PATH` or `http://HOST:PORT`, each request within `timeout_s`."""

    def deliver(measurements: Sequence[Measurement]) -> set[str]:
        from history import client
        from history.wire import Accepted, Measurements

        body = Measurements(list(measurements)).model_dump_json().encode()
        try:
            answer = client.post(
                service, "/v1/measurements", body, timeout_s=timeout_s, munge_socket=munge_socket
            )
            return set(Accepted.model_validate(answer).accepted)
        except client.Refused as error:
            if error.status in _MALFORMED:
                raise Malformed(str(error)) from None
            raise Undelivered(f"{service}: {error}") from None
        except (client.Unreachable, ValueError, OSError) as error:
            raise Undelivered(str(error)) from None

    return deliver
