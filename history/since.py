"""How people write a moment in the past."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_since(text: str, now: datetime) -> datetime:
    """The moment meant by `2026-01-31`, `2026-01-31T08:00` (zone of `now`), `30m`, `12h`, `7d` or `2w`.

    Raises:
        ValueError: it is none of these, or too far away.
    """
    try:
        if ago := re.fullmatch(r"(\d{1,9})([mhdw])", text, re.ASCII):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a date such as 2026-01-31 nor a time such as 7d, 12h or 30m"
        ) from None
