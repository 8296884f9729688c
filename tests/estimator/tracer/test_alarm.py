"""The deadline of a traced run, for programs that do what they can to be left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

ALARM = Path(__file__).parents[3] / "estimator" / "tracer" / "alarm.py"
START = """
import importlib.util, os, signal, time
spec = importlib.util.spec_from_file_location("alarm", {path!r})
alarm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(alarm)
def leave(how):
    print(how, end="", flush=True)
    os._exit(0)
now = time.monotonic()
alarm.at(now + 1, lambda: leave("signal"))
alarm.from_thread(now + 2.5, lambda: leave("thread"))
"""
IGNORES = """
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(60)
"""
BLOCKS = """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: time.sleep(60)
"""
IN_A_LIBRARY = "import hashlib\nhashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
OWN_HANDLERS = """
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPROF):
    signal.signal(number, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
time.sleep = time.monotonic = None
while True: signal.pause()
"""
FORKED = """
if os.fork() == 0:
    time.sleep(3)
    print("child ", end="", flush=True)
    os._exit(0)
try: os.wait()
finally: time.sleep(60)
"""


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (IGNORES, "thread"),
        (BLOCKS, "thread"),
        (IN_A_LIBRARY, "thread"),
        (OWN_HANDLERS, "signal"),
        (FORKED, "signalchild "),
    ],
    ids=["ignores signals", "blocks signals", "in a library", "own handlers", "forked"],
)
def test_the_deadline_comes_whatever_a_program_does(program: str, how: str) -> None:
    order = [sys.executable, "-W", "ignore", "-c", START.format(path=str(ALARM)) + program]
    done = subprocess.run(order, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (how, "")
