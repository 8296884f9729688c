"""Real programs with the real torch, traced: what they leave behind, and how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import estimator.trace
from estimator import owners
from estimator.allocator import replay

TRACER = Path(__file__).parents[3] / "estimator" / "tracer"
TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    x = torch.randn(256, 1024).cuda()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item(), flush=True)
"""


@pytest.fixture
def trace(traced):
    done, trace = traced(TRAINING)
    assert done.returncode == 0, done.stderr
    return trace


def live_blocks(trace, mark):
    """Address -> requested bytes of what is allocated when interval `mark` begins."""
    actions, events = trace["actions"], trace["events"]
    live = {}
    for i in range(trace["marks"][mark]["event"]):
        name = actions[events["action"][i]]
        if name == "alloc":
            live[events["address"][i]] = events["size"][i]
        elif name == "free_completed":
            del live[events["address"][i]]
    return live


def owned(trace, owner):
    return [entry for entry in trace["owned"] if entry["owner"] == owner]


def test_training_is_cut_after_the_steps_and_says_so(traced):
    done, trace = traced(TRAINING, steps=2)
    assert done.returncode == 0
    assert "step 0" in done.stdout and "step 2" not in done.stdout
    assert (trace["steps"], trace["end"], trace["error"]) == (2, "steps", None)
    assert trace["unknown_calls"] == []


def test_a_loss_reads_as_a_number_to_compute_with(traced):
    done, _ = traced(TRAINING)
    assert done.stdout.splitlines()[0] == "step 0 1.0"


def test_parameters_gradients_and_optimizer_state_are_found_to_the_byte(trace):
    shapes = [(4096, 1024), (4096,), (1024, 4096), (1024,)]
    sizes = sorted(4 * int.__mul__(*shape) if len(shape) == 2 else 4 * shape[0] for shape in shapes)
    for owner, copies in (("parameters", 1), ("gradients", 1), ("optimizer_state", 2)):
        entry = owned(trace, owner)[-1]
        live = live_blocks(trace, entry["mark"])
        found = sorted(live[address] for address in entry["addresses"])
        assert found == sorted(sizes * copies)


def test_phases_follow_the_training_loop(trace):
    phases = [(mark["phase"], mark["step"]) for mark in trace["marks"]]
    assert phases[0] == ("setup", 0)
    assert phases[1] == ("forward", 0)
    assert [phase for phase, _ in phases[2:8]] == [
        "backward", "forward", "optimizer", "forward", "backward", "forward",
    ]  # fmt: skip
    assert max(step for _, step in phases) == 3
    events = [mark["event"] for mark in trace["marks"]]
    assert events == sorted(events)


def test_inputs_and_workspaces_are_seen_where_the_libraries_touch_them(trace):
    batch = 256 * 1024 * 4
    inputs = [entry for entry in trace["touched"] if entry["owner"] == "inputs" and entry["bytes"] == batch]
    assert {trace["marks"][entry["mark"]]["phase"] for entry in inputs} >= {"setup", "forward"}
    assert any(entry["owner"] == "workspaces" and entry["bytes"] > 2**20 for entry in trace["touched"])


def test_the_marker_stream_is_not_in_the_trace(trace):
    assert set(trace["events"]["stream"]) == {0}
    assert 512 not in {
        size for action, size in zip(trace["events"]["action"], trace["events"]["size"], strict=True)
        if trace["actions"][action] == "segment_alloc"
    }  # fmt: skip


def test_stacks_lead_to_the_line_of_the_user(trace):
    frames = {tuple(frame[:2]) for frame in trace["frames"]}
    assert any(file.endswith("train.py") and line == 3 for file, line in frames)


def test_what_a_program_is_made_of(traced, tmp_path):
    (tmp_path / "helper.py").write_text("SIZE = 8\n")
    _, trace = traced("import helper, json, torch\ntorch.ones(helper.SIZE).cuda()\n")
    parts = {str(Path(*Path(entry["path"]).parts[-2:])) for entry in trace["inputs"]}
    here = tmp_path.name
    assert {f"{here}/helper.py", "torch/__init__.py", "torch/version.py"} <= parts
    assert not any(part.startswith(("json/", "nn/")) for part in parts)
    assert trace["inputs"][0]["path"] == os.path.realpath(sys.executable)


def test_an_exception_is_reported_with_the_line_of_the_user(traced):
    done, trace = traced("import torch\ntorch.ones(1).cuda()\nopen('missing.bin')\n")
    assert done.returncode == 1
    assert trace["end"] == "exception"
    assert trace["error"]["type"] == "FileNotFoundError"
    assert trace["error"]["file"].endswith("train.py")
    assert trace["error"]["line"] == 3


def test_an_exception_below_our_own_wrappers_is_the_line_of_the_user(traced):
    _, trace = traced("import torch\nx = torch.ones(1).cuda()\nx.backward()\n")
    assert trace["error"]["type"] == "RuntimeError"
    assert (Path(trace["error"]["file"]).name, trace["error"]["line"]) == ("train.py", 3)


def test_an_exception_before_torch_is_reported_too(traced):
    _, trace = traced("x = 1\nx.y\n")
    assert (trace["error"]["type"], trace["error"]["line"]) == ("AttributeError", 2)


def test_a_syntax_error_is_reported_with_its_line(traced):
    _, trace = traced("x = 1\ny = (\n")
    assert (trace["error"]["type"], trace["error"]["line"]) == ("SyntaxError", 2)


def test_the_exit_code_of_the_program_is_kept(traced):
    done, trace = traced("import sys, torch\ntorch.ones(1).cuda()\nsys.exit(3)\n")
    assert done.returncode == 3
    assert trace["end"] == "script"


def test_a_program_without_torch_says_so(traced):
    done, trace = traced("print('hello')\n")
    assert done.stdout == "hello\n"
    assert trace["events"] is None
    assert "did not import PyTorch" in trace["reason"]


def test_data_loading_workers_leave_no_trace_and_no_process(traced):
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
transform = torch.nn.ReLU()  # modules that run in the workers are common: those of torchvision.transforms
def collate(items):
    return [transform(torch.stack([x for x, in items]))]
loader = DataLoader(TensorDataset(torch.zeros(512, 16)), batch_size=4, num_workers=2, collate_fn=collate)
model = torch.nn.Linear(16, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
    _, trace = traced(program)
    assert trace["end"] == "script"
    running = subprocess.run(["pgrep", "-f", trace["argv"][0]], capture_output=True, text=True)
    assert running.stdout == ""


def test_a_history_that_lost_its_beginning_is_a_valid_trace(traced):
    _, trace = traced(TRAINING, settings={"max_events": 40})
    assert not estimator.trace.parse(json.dumps(trace).encode(), "a trace").complete


def test_a_gradient_scaler_does_not_skip_its_steps(traced):
    program = TRAINING.replace("loss.backward()", "scaler.scale(loss).backward()")
    program = program.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    _, trace = traced(
        program.replace("import torch", "import torch\nscaler = torch.amp.GradScaler('cuda')", 1)
    )
    assert (trace["steps"], trace["end"]) == (3, "steps")
    assert owned(trace, "optimizer_state")


def test_a_hidden_sitecustomize_still_runs(traced, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'\n")
    done, _ = traced(
        "import os; print(os.environ['THEIRS'])\n", PYTHONPATH=f"{TRACER / 'inject'}{os.pathsep}{other}"
    )
    assert done.stdout == "ran\n"


def test_no_real_cuda_library_is_linked(traced):
    """Neither by SONAME nor by the full path, which torch opens some with."""
    done, _ = traced("""
import os, torch
torch.ones(1).cuda()
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/nvidia/" in line}
print(sorted(os.path.basename(path) for path in maps))
""")
    assert done.stdout == "[]\n"


def test_activations_are_found_by_module(traced):
    """Of nested, failing and checkpointed modules."""
    program = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.broken = nn.Bilinear(1, 1, 1)
    def forward(self, x):
        try:
            self.broken(x, x)
        except RuntimeError:
            pass
        for layer in self.layers[:2]:
            x = layer(x)
        return checkpoint(self.layers[2], x, use_reentrant=False) * 2

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(1024, 512, device="cuda")).sum().backward()
    optimizer.step()
"""
    done, found = traced(program)
    assert done.returncode == 0, done.stderr
    trace = estimator.trace.parse(json.dumps(found).encode(), "trace")
    split = owners.split(trace, replay(trace.events)).by_module
    hidden, wide = 1024 * 512 * 4, 1024 * 2048 * 4
    for layer in (0, 1):
        assert split[f"layers.{layer}.up"] == split[f"layers.{layer}.act"] == wide
        assert split[f"layers.{layer}"] == hidden
    assert not any(name.startswith("layers.2.") for name in split), "these are recomputed"


def test_a_program_of_which_no_trace_can_come_ends_soon(traced, tmp_path):
    (tmp_path / "jax.py").write_text("")
    program = "import jax, time\nprint('started', flush=True)\ntime.sleep(60)\nprint('never reached')\n"
    done, trace = traced(program, settings={"patience": 0.2})
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert (trace["end"], trace["reason"]) == ("untraceable", "this program uses JAX, not PyTorch")


def test_a_torch_without_cuda_ends_soon_too(traced, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.14.1+cpu'\n")
    done, trace = traced("import torch, time\ntime.sleep(60)\n", settings={"patience": 0.2})
    assert (done.returncode, trace["end"]) == (0, "untraceable")
    assert "is built without CUDA" in trace["reason"]


def test_a_program_that_comes_to_pytorch_in_the_end_is_traced(traced, tmp_path):
    (tmp_path / "jax.py").write_text("")
    _, trace = traced("import jax\n" + TRAINING, settings={"patience": 1.0})
    assert (trace["end"], trace["steps"]) == ("steps", 3)


ON_THE_DRIVERS_POOL = """
import torch
x = torch.zeros(1024, 1024, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.relu()
print(torch.cuda.get_allocator_backend())
"""


def test_a_program_on_cuda_malloc_async_runs_on_the_native_allocator_and_its_graphs_have_pools(traced):
    done, trace = traced(ON_THE_DRIVERS_POOL, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert done.stdout.strip() == "native"
    assert any("cudaMallocAsync" in what for what in trace["invented"])
    assert {segment["pool"] for segment in trace["private_segments"]} == {1}


LONG_LOOP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    loss = model(torch.randn(64, 512).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    model(torch.randn(40960, 512).cuda())
"""


def test_a_loop_is_walked_to_the_evaluation_behind_it_and_steps_that_repeat_are_told_once(traced):
    done, trace = traced(LONG_LOOP)
    assert done.returncode == 0, done.stderr
    assert (trace["steps"], trace["end"], trace.get("unreached", [])) == (40, "script", [])
    assert "evaluation" in {mark["phase"] for mark in trace["marks"]}
    assert len(trace["events"]["action"]) < 1500
    found = estimator.trace.parse(json.dumps(trace).encode(), "trace")
    noted = trace["peaks"]["allocated"] - replay(found.events).allocated_peak
    assert noted in (0, 1024)  # PyTorch counts the note of a module's call, too
