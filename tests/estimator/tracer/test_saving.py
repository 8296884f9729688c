"""Checkpoints with holes are read back by PyTorch and safetensors themselves."""

import subprocess
import sys
from pathlib import Path

TRACER = Path(__file__).parents[3] / "estimator" / "tracer"

# a process of its own: torch is changed for good
PROGRAM = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location(
    "_gpumem_tracer", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import torch
from _gpumem_tracer import saving
saving.without_bytes()
from safetensors.torch import load_file, save_file

tensors = {
    "large": torch.empty(1 << 28, dtype=torch.bfloat16).view(2, -1),
    "half": torch.ones(3, dtype=torch.float16),
    "small": torch.arange(5),
    "empty": torch.empty(0),
    "scalar": torch.tensor(7.5),
}
torch.save({"model": tensors, "epoch": 3, "random": torch.get_rng_state()}, "model.pt")
save_file(tensors, "model.safetensors", {"format": "pt"})
for name in ("model.pt", "model.safetensors"):
    status = os.stat(name)
    assert status.st_size > 1 << 29, name
    assert status.st_blocks * 512 < 1 << 20, name
saved = torch.load("model.pt", mmap=True)
assert saved["epoch"] == 3
torch.set_rng_state(saved["random"])
for read in (saved["model"], load_file("model.safetensors")):
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].shape, read[name].dtype) == (tensor.shape, tensor.dtype), name
        assert name == "large" or torch.equal(read[name], tensor), name
print("done")
"""


def test_large_tensors_take_no_room_and_small_ones_keep_their_values(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TRACER)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "done\n", done.stderr
