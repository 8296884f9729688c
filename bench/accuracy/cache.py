"""Answers that took time, kept as JSON lines: a run that is stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Cache:
    """Objects by what they answer: a kind, and the words that it depends on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Mapping[str, Any]] = {}
        if file.exists():
            for text in file.read_text(encoding="utf-8").splitlines():
                try:
                    line = json.loads(text)
                    self._known[line["key"]] = line["answer"]
                except (ValueError, KeyError):  # the line that was written when the run was stopped
                    continue

    def get(self, kind: str, words: Sequence[str]) -> Mapping[str, Any] | None:
        """What is known, or None."""
        return self._known.get(_key(kind, words))

    def put(self, kind: str, words: Sequence[str], answer: Mapping[str, Any]) -> None:
        """Keeps an answer, at once."""
        key = _key(kind, words)
        self._known[key] = answer
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"key": key, "answer": answer}) + "\n")


def _key(kind: str, words: Sequence[str]) -> str:
    return json.dumps([kind, *words])
