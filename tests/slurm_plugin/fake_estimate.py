"""Stands in for `gpumem estimate`: does what `: fake key=value` lines of the job script say, at once.

Keys: sleep (seconds), until (a file that it waits for), shards (that the peak and its prior margin come to), fits, fail (reason, `_` for blanks),
input (a file beside the script's work_dir), garbage (printed instead of JSON), job_name (that it holds for),
report (a file that gets uid, groups, environment, arguments as JSON).
"""

import json
import os
import sys
import time

ARGUMENTS = sys.argv[1:]
OPTIONS_WITH_VALUE = ("--gpu", "--timeout", "--chdir", "--config", "--array", "--sbatch")
GIB = 1024**3

options, rest = {}, list(ARGUMENTS)
while rest[0].startswith("--"):
    name = rest.pop(0)
    options[name] = rest.pop(0) if name in OPTIONS_WITH_VALUE else ""
script = rest[0]
os.chdir(options["--chdir"])
with open(script) as file:
    lines = [line.split()[2:] for line in file if line.startswith(": fake ")]
wish = dict(word.split("=", 1) for line in lines for word in line)

if "report" in wish:
    facts = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "environment": dict(os.environ),
        "arguments": rest[1:],
        "options": options,
        "cwd": os.getcwd(),
        "script_mode": oct(os.stat(script).st_mode & 0o777),
        "folder_mode": oct(os.stat(os.path.dirname(script)).st_mode & 0o777),
        "pid": os.getpid(),
    }
    with open(wish["report"], "a") as file:
        file.write(json.dumps(facts) + "\n")
time.sleep(float(wish.get("sleep", 0)))
while "until" in wish and not os.path.exists(wish["until"]):
    time.sleep(0.02)
if "garbage" in wish:
    print(wish["garbage"])
    sys.exit("Traceback: something broke")
if "fail" in wish:
    reason = wish["fail"].replace("_", " ")
    print(json.dumps({"status": "failed", "reason": reason}))
    sys.exit(reason)

inputs = []
if "input" in wish:
    path = os.path.abspath(wish["input"])
    status = os.stat(path)
    inputs = [{"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns}]
shards = int(wish.get("shards", 10))
peak = min(int((shards * GIB - 1000) / 1.03), shards * GIB - 1000 - 256 * 1024**2)
print(
    json.dumps(
        {
            "status": "exact",
            "job_name": wish.get("job_name"),
            "peak_bytes": peak,
            "reserved_peak_bytes": peak - GIB // 2,
            "allocated_peak_bytes": peak - GIB // 2,
            "outside_allocator_bytes": GIB // 2,
            "recommended_bytes": shards * GIB,
            "shards": shards,
            "shard_bytes": GIB,
            "by_owner": {"other": peak - GIB // 2},
            "steps": 3,
            "wall_s": 0.1,
            "torch_version": "2.14.1+cu130",
            "gpu": options["--gpu"],
            "fits": wish.get("fits", "yes") == "yes",
            "notes": [],
            "inputs": inputs,
        }
    )
)
