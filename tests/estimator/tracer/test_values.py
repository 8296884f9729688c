"""What a program reads back, and sizes that follow data; one program for many readings, with the real torch."""

import json

READINGS = """
import json, math, torch, torchvision
torch.manual_seed(0)
found = {}
model = torch.nn.Linear(8, 4).cuda()
x, y = torch.randn(4096, 8).cuda(), torch.randint(0, 4, (64,))
labels = y.cuda()
loss = torch.nn.functional.cross_entropy(model(x[:64]), labels)
loss.backward()
found["floats"] = [loss.item(), float(loss), loss.tolist(), float(loss.detach().cpu()), loss.half().item(),
                   loss.bfloat16().item(), float(x.detach().to("cpu").numpy()[0, 0])]
found["finite"] = [bool(torch.isfinite(loss).all()), bool(x.isfinite().all()), math.isfinite(loss.item())]
found["not finite"] = [bool(torch.isnan(loss)), bool(x.isnan().any()), bool(torch.isinf(x).any())]
found["better"] = [bool(loss < math.inf), bool(loss <= 1e-7)]
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
found["norm"] = norm.item()
found["labels"] = [labels.cpu().equal(y), labels[:9].tolist() == y[:9].tolist(),
                   (labels == 2).sum().item() == int((y == 2).sum()), labels.max().item() == int(y.max())]
found["selected"] = [x[:64][labels > 1].shape[0] == int((y > 1).sum()), len(torch.unique(labels)),
                     torch.where(labels == 3)[0].tolist() == torch.where(y == 3)[0].tolist()]
lengths = torch.tensor([3, 7, 2]).cuda()
found["lengths"] = [lengths.max().item(), lengths.cpu().tolist(), len(torch.repeat_interleave(lengths))]
labels[labels == 2] = -100
found["written"] = (labels == -100).sum().item() == int((y == 2).sum())
predicted = model(x).argmax(1)
found["accuracy"] = (predicted[:64] == y.cuda()).sum().item() > 0
experts = torch.nn.functional.one_hot(x.softmax(-1).topk(2, -1).indices, 8)
found["experts"] = [len(torch.where(experts.permute(2, 1, 0)[expert])[0]) for expert in range(8)]
found["bound"] = [len(x[x[:, 0] > 0]), len(torch.nonzero(x > 5)), len(torchvision.ops.nms(x[:, :4], x[:, 0], 0.5))]
labels = torch.arange(4, device="cuda").view(1, -1).expand_as(x[:, :4]).reshape(-1)
found["classes"] = len(torch.unique(labels[torch.where((x[:, :4] > 0.05).reshape(-1))[0]]))
found["alike"] = torch.unique(torch.cat([torch.full_like(x[:, 0], k, dtype=torch.long) for k in (1, 2)])).tolist()
found["action"] = torch.distributions.Normal(x, x).sample().shape[0]
found["inverse"] = torch.linalg.inv(torch.eye(3).cuda()).shape[0]
found["made up"] = len(torch.zeros((x > 0).sum().item(), 2, device="cuda"))
closure = lambda: (optimizer.zero_grad(), (loss := model(x).square().mean()).backward(), loss)[2]
optimizer = torch.optim.LBFGS(model.parameters())
optimizer.step(closure)
found["lbfgs"] = len(optimizer.state[next(model.parameters())]["old_dirs"])
tokens = torch.tensor([[7, 7, 1, 2], [7, 3, 7, 4]]).cuda()
features = torch.randn(4, 8, device="cuda", requires_grad=True)
torch._check_tensor_all((tokens == 7).sum() * 8 == features.numel())
torch.zeros(2, 4, 8, device="cuda").masked_scatter((tokens == 7).unsqueeze(-1), features).sum().backward()
found["features"] = list(features.grad.shape)
torch.zeros(2, 4, 8, device="cuda").masked_scatter((x[:2, :4, None] > 0), features).sum().backward()
found["graph"] = "def forward" in torch.fx.symbolic_trace(torchvision.models.densenet121()).code
script = torch.jit.script(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)))
found["script"] = script(torch.ones(3, 4)).shape[0]
str(x)
print(json.dumps(found))
"""


def test_values_read_back_let_a_program_go_on(traced):
    done, trace = traced(READINGS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "floats": [1.0] * 7,
        "finite": [True] * 3,
        "not finite": [False] * 3,
        "better": [True, False],
        "norm": 1.0,
        "labels": [True] * 4,
        "selected": [True, 4, True],
        "lengths": [7, [3, 7, 2], 12],
        "written": True,
        "accuracy": True,
        "experts": [1024] * 8,
        "bound": [4096, 4096 * 8, 4096],
        "classes": 4,
        "action": 4096,
        "alike": [1, 2],
        "inverse": 3,
        "made up": 4096 * 8,
        "lbfgs": 100,
        "features": [4, 8],
        "graph": True,
        "script": 3,
    }
    lines = READINGS.splitlines()
    told = {
        (size["what"], lines[size["frames"][0][1] - 1].split('"')[1] if size["frames"] else "within torch")
        for size in trace["sizes"]
    }
    assert told == {
        ("nonzero", "experts"),
        ("nonzero", "bound"),
        ("nonzero", "classes"),
        ("unique", "classes"),
        ("an integer read back", "made up"),
        ("the gradient of masked_scatter", "within torch"),
    }
    assert trace["integers_read"] >= 1


# the quotation names what a line shows; those of SIZES must be told, those of HARMLESS must not
COUNTS = """
import torch
x = torch.randn(64, 32).cuda()
mask, host = x > 0, None
def rows(count): return torch.zeros(count, 4, device="cuda")
def longest(): return int(x.argsort(1).max())
class Batch:
    def __init__(self): self.count = round((x > 1).sum().item())
for _ in range(int(mask.sum())): break                              # "loop"
for _ in range(x.sum(1).max().long().item()): break                 # "item"
for _ in range(x.argmax()): break                                   # "tensor"
torch.zeros(int(x.long().max()), device="cuda")                     # "shape"
n = 2 + float(x.mean()) // 1; y = x[: int(n)]                       # "slice"
rows(int(mask[0].sum()))                                            # "argument"
torch.empty(longest() + 1)                                          # "returned"
for k in x.long().sum(1).tolist(): torch.arange(k)                  # "list"
lengths = mask.sum(1).cpu()
torch.zeros(lengths.max().item())                                   # "host"
(x > 2).cpu().nonzero()                                             # "host mask"
batch = Batch()                                                     # "attribute"
[None for _ in range(batch.count)]
known = torch.tensor([3, 7, 2]).cuda()
for _ in range(int(known.max())): rows(known.sum().item())          # "known"
correct = 0
correct += int((x.argmax(1) == 1).sum())                            # "accuracy"
print(int(x.long().max()), float(x.mean()), correct / 64)           # "printed"
history = []; history.append((x > 0).float().mean().item())         # "kept"
if int(torch.isnan(x).sum()) > 0: raise SystemExit("not a number")  # "not finite"
if not int(torch.isfinite(x).sum()) == x.numel(): raise SystemExit("finite")  # "finite"
"""


def test_sizes_and_counts_made_of_numbers_that_are_not_known_are_told(traced):
    done, trace = traced(COUNTS)
    assert done.returncode == 0, done.stderr
    lines = COUNTS.splitlines()
    told = {
        line.split('"')[-2] if '# "' in (line := lines[frame[1] - 1]) else line.split("(")[0].split()[-1]
        for size in trace["sizes"]
        for frame in size["frames"][:1]
    }
    assert told == {
        "loop", "item", "tensor", "shape", "slice", "argument", "list", "host", "host mask",
        "longest", "__init__",
    }  # fmt: skip


WAYS = """
import torch
x = torch.randn(4096, 8).cuda()
kept = x[x > 0] if x.isfinite().all() and x.mean().item() else x
print(len(kept), torch.cuda.max_memory_allocated())
"""


def test_a_program_on_a_pretend_node_goes_the_way_that_was_traced(traced):
    in_a_dry_run, _ = traced(WAYS)
    on_a_node, trace = traced(WAYS, on_node=True)
    assert on_a_node.stdout == in_a_dry_run.stdout
    assert on_a_node.stdout.startswith("32768 ")
    assert trace is None


REGIONS = """
import torch
from torchvision.models.detection.roi_heads import RoIHeads
heads = RoIHeads(None, None, None, 0.5, 0.5, 512, 0.25, None, 0.05, 0.5, 100)
corners = torch.rand(2000, 2).cuda()
boxes = torch.cat([corners, corners + 1], 1)
target = {"boxes": boxes[:8] + 0.1, "labels": torch.ones(8, dtype=torch.long).cuda()}
_, _, labels, _ = heads.select_training_samples([boxes, boxes[:300]], [target, target])
print([len(one) for one in labels], [len(torch.where(one > 0)[0]) for one in labels])
"""


def test_detectors_train_on_as_many_regions_as_their_samplers_take_at_most(traced):
    done, trace = traced(REGIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[512, 308] [128, 128]\n"
    assert any(size["what"] == "nonzero" for size in trace["sizes"])
