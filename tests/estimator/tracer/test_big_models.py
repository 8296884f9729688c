"""Models and checkpoints far larger than the host's memory, with the real torch."""

import json


def report(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_large_models_are_built_converted_copied_and_moved_without_memory(traced):
    """A model of 32 GiB: each of these would take seconds and many GiB if its bytes were written."""
    done, _ = traced("""
import copy, json, resource, torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.randn(width, 8 * width))
        nn.init.trunc_normal_(self.up.weight, std=0.02)
        nn.init.orthogonal_(self.down.weight)
        nn.init.kaiming_normal_(self.scale)
        with torch.no_grad():
            self.scale.mul_(0.02).add_(1.0)
        self.register_buffer("running", torch.zeros(width, width))

model = nn.ModuleList(Block(8192) for _ in range(8))
average = copy.deepcopy(model).half()
average.load_state_dict(model.state_dict())
for parameter in average.parameters():
    parameter.data.copy_(parameter.data.clone())
    parameter.data.zero_()
joined = torch.cat([block.scale for block in average] + [torch.stack([block.up.weight for block in average]).view(-1, 65536)])
model = model.to(torch.bfloat16)
model.cuda()
average.to("cuda", torch.float32)
back = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
print(json.dumps({
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "dtypes": sorted({str(p.dtype) for m in (model, average) for p in m.parameters()}),
    "elements": sum(p.numel() for p in model.parameters()),
    "on_gpu": torch.cuda.memory_allocated(),
}))
""".replace("joined = torch.cat", "with torch.no_grad():\n    joined = torch.cat"))  # fmt: skip
    said = report(done)
    assert said["rss"] < 2 * 2**30
    assert said["dtypes"] == ["torch.bfloat16", "torch.float32"]
    assert 6 * said["elements"] < said["on_gpu"] < 6.5 * said["elements"]


def test_small_tensors_and_integers_keep_what_they_hold(traced):
    done, _ = traced("""
import json, torch
tokens = torch.arange(5_000_000)
pixels = torch.arange(3_000_000, dtype=torch.uint8)
small = torch.arange(1000.0)
large = torch.zeros(2_000_000)
large[5] = 1
graph = torch.zeros(2_000_000, requires_grad=True)
graph.to(torch.float64).sum().backward()
print(json.dumps({
    "tokens": tokens.clone().to(torch.int32)[-1].item(),
    "joined": torch.cat([tokens, tokens])[-1].item(),
    "pixels": pixels.float()[258].item(),
    "small": small.half().float().clone().mul_(2).sum().item(),
    "kept": [large[5].item(), large[6].item()],
    "zeroed": large.zero_()[5].item(),
    "counts": torch.zeros(2_000_000, dtype=torch.long).sum().item(),
    "gradient": graph.grad[7].item(),
}))
""")
    assert report(done) == {
        "tokens": 4_999_999,
        "joined": 4_999_999,
        "pixels": 2.0,
        "small": 999_000.0,
        "kept": [1.0, 0.0],
        "zeroed": 0.0,
        "counts": 0,
        "gradient": 1.0,
    }


def test_checkpoints_are_not_read(traced, tmp_path):
    """8 GiB in each format, holes only; from a path and from an open file, to the CPU and to the GPU."""
    done, _ = traced("""
import io, json, struct, torch
from safetensors.torch import load_file

def waited():  # bytes that the process had from files
    return int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])

state = {f"{i}.weight": torch.empty(16384, 16384) for i in range(8)} | {"step": torch.tensor(7)}
with torch.serialization.skip_data():
    torch.save(state, "model.pt")
size = 16384 * 16384 * 4
header = {f"{i}.weight": {"dtype": "F32", "shape": [16384, 16384], "data_offsets": [i * size, (i + 1) * size]} for i in range(8)}
text = json.dumps(header).encode()
with open("model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + 8 * size)
before = waited()
model = torch.nn.Sequential(*[torch.nn.Linear(16384, 16384, bias=False) for _ in range(8)])
for load in (
    lambda: torch.load("model.pt"),
    lambda: torch.load("model.pt", map_location="cuda"),
    lambda: torch.load(open("model.pt", "rb"), map_location="cpu", weights_only=False),
    lambda: load_file("model.safetensors"),
    lambda: load_file("model.safetensors", device="cuda"),
):
    loaded = load()
    loaded.pop("step", None)
    model.load_state_dict(loaded)
small = io.BytesIO()
torch.save({"learned": torch.arange(3.0)}, small)
small.seek(0)
status = open("/proc/self/status").read()
print(json.dumps({
    "rss": 1024 * int(status.split("VmHWM:")[1].split()[0]),
    "read": waited() - before,
    "on_gpu": torch.cuda.max_memory_allocated(),
    "small": torch.load(small)["learned"].tolist(),
}))
""")
    said = report(done)
    assert said["rss"] < 2 * 2**30
    assert said["read"] < 2**27
    assert said["on_gpu"] - 8 * 2**30 in (0, 512)  # and the step, if two checkpoints were there at once
    assert said["small"] == [0.0, 1.0, 2.0]
