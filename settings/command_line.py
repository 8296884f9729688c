"""How commands tell a failure, to programs too. Imported when there is one, so that `--help` stays quick."""

from __future__ import annotations

import json
import sys
from typing import Any


def tell_failure(program: str, reason: str, as_json: bool) -> None:
    """Says why on standard error; with --json also as an object on standard output."""
    if as_json:
        print(json.dumps({"status": "failed", "reason": reason}))
    print(f"{program}: {reason}", file=sys.stderr)


def tell_wrong_usage(error: Any) -> int:
    """The same for a usage error of typer, if --json is among our own options; returns the exit code."""
    error.show()
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if "--json" in own:
        print(json.dumps({"status": "failed", "reason": error.format_message()}))
    return 2
