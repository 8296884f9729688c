"""Credentials in what a job is given: found by the names they go by, and hidden wherever text is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "..."
SHORTEST = 6  # characters; shorter values ("true", "1") would hide ordinary words

# Repetitions are bounded: the texts are other people's, and may be made to take long.
_NAME = (
    r"(?:[A-Za-z0-9]{1,40}[_-]){0,8}"
    r"(?:api[_-]?key|key|token|secret|passwd|password|passphrase|credentials?|auth|cookie)"
)
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"';&|)]+"
_NAMED = re.compile(
    rf"(?i)(?<![\w$-])(?:--?)?(?:{_NAME}(?:[_-][A-Za-z0-9]{{1,40}}){{0,4}})(?:=|[ \t]{{1,8}}(?!--))({_VALUE})"
)
_LOGIN = re.compile(rf"(?i)\blogin\b[^\n;&|]{{0,200}}?[ \t](?!-)({_VALUE})")
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)[ \t]{1,8}([\w.+/=~-]+)")
_IN_URL = re.compile(r"://[^/\s:@]{0,200}:([^/\s@]{1,500})@")
# tokens that tell what they are: Hugging Face, GitHub, GitLab, OpenAI and like ones, AWS, Slack
_KNOWN = re.compile(r"\b((?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-)[\w-]{16,}|AKIA[A-Z0-9]{16})\b")
_SECRET_NAME = re.compile(rf"(?i)(^|_){_NAME}($|_)")


def of_environment(environment: Mapping[str, str]) -> set[str]:
    """The values of variables whose names are those of credentials."""
    return {value for name, value in environment.items() if _SECRET_NAME.search(name) and _hidden(value)}


def of_text(*texts: str) -> set[str]:
    """The values that a script or command lines give to such names, and tokens of a well-known form."""
    found = set()
    for text in texts:
        for pattern in (_NAMED, _LOGIN, _BEARER, _IN_URL, _KNOWN):
            found |= {match[1].strip("\"'") for match in pattern.finditer(text)}
    return {value for value in found if _hidden(value)}


def of_arguments(arguments: Iterable[str]) -> set[str]:
    """The values that arguments (`--api-key`, `VALUE` or `--api-key=VALUE`) give to such names."""
    return of_text(" ".join(arguments))


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with each of these values replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def hide_in(value: Any, secrets: Iterable[str]) -> Any:
    """As `hide`, in all texts of a JSON value; names in it stay."""
    if isinstance(value, str):
        return hide(value, secrets)
    if isinstance(value, list):
        return [hide_in(item, secrets) for item in value]
    if isinstance(value, dict):
        return {name: hide_in(item, secrets) for name, item in value.items()}
    return value


def _hidden(value: str) -> bool:
    """Whether a value may be one: long enough, and not a variable, a number, a path or a plain word."""
    if len(value) < SHORTEST or value.startswith(("$", "/", "~", "./")):
        return False
    return not re.fullmatch(r"[\d.,eE+-]+|[a-z]{1,15}", value)
