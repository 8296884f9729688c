"""Fixtures of these tests."""

from tests.prolog.pretend_node import node, nvml, place, service

__all__ = ["node", "nvml", "place", "service"]
