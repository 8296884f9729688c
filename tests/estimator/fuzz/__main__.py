"""`python -m tests.estimator.fuzz [--commands N] [--seed TEXT] PYTHON...`: exit code 0 if nothing differs."""

from __future__ import annotations

import argparse
import sys
import time

from tests.estimator.fuzz.campaign import Campaign
from tests.estimator.fuzz.compare import shrink
from tests.estimator.fuzz.oracle import Oracle


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.estimator.fuzz", description=__doc__)
    parser.add_argument(
        "pythons", nargs="*", default=[sys.executable], metavar="PYTHON", help="has a torch for CUDA"
    )
    parser.add_argument("--commands", type=int, default=500_000, help="for each PYTHON")
    parser.add_argument("--length", type=int, default=1000, help="commands in one session")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--settings", default="", help="only these: " + "a word of the table in commands.py")
    options = parser.parse_args()
    failed = False
    for python in options.pythons:
        begin = time.monotonic()
        oracle = Oracle(python)
        campaign = Campaign(oracle.torch_version, options.seed, options.length, options.settings)
        print(f"torch {oracle.torch_version} ({python})", flush=True)
        done = 0
        counts: dict[str, int] = {}
        for name, session, found in campaign.differences(options.commands, oracle):
            if found is not None:
                failed = True
                oracle.close()
                short = shrink(found, campaign.config(session), oracle.run)
                print(f"DIFFERENCE under {name}, made short:\n{short}")
                break
            done += len(session.commands)
            counts[name] = counts.get(name, 0) + len(session.commands)
        oracle.close()
        print("\n".join(f"  {name:15} {count:9,} commands equal" for name, count in counts.items()))
        print(
            f"  {done:,} commands in {time.monotonic() - begin:.0f} s, {campaign.ooms:,} out of memory",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
