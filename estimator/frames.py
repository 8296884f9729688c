"""Which frames of a Python stack are the user's own."""

from __future__ import annotations

from collections.abc import Sequence

Frame = tuple[str, int, str]
"""File, line and function."""

PACKAGES = ("/site-packages/", "/dist-packages/", "<frozen ")
TRACER = "/estimator/tracer/"  # our own wrappers, which are on the stack of a traced run


def users(stack: Sequence[Frame]) -> list[Frame]:
    """The frames outside of installed packages and of the tracer; those of packages if there are no more."""
    others = [frame for frame in stack if TRACER not in frame[0]]
    return [frame for frame in others if not any(folder in frame[0] for folder in PACKAGES)] or others
