"""Programs as users of the frameworks write them, traced with the real libraries."""

import pytest

COMPILED = """
import torch
model = torch.nn.Sequential(
    torch.nn.Linear(512, 1000), torch.nn.GELU(), torch.nn.LayerNorm(1000), torch.nn.Linear(1000, 512)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for called in (model, torch.compile(model)):
    for step in range(2):
        loss = called(torch.randn(4096, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), flush=True)
    torch.cuda.reset_peak_memory_stats()
"""
FAILS = """
import torch._inductor.config
def fails(graph):
    raise NotImplementedError("this pass")
torch._inductor.config.post_grad_custom_post_pass = fails
"""
TRITON = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024})], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

x = torch.ones(1 << 20, device="cuda")
y = torch.empty_like(x)
for _ in range(2):
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
print("best", double.best_config.kwargs["BLOCK"])
"""
FAKES = """
import copy, torch, warnings
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
warnings.simplefilter("error")
with FakeCopyMode(FakeTensorMode()):
    copied = copy.deepcopy(torch.nn.Linear(4, 4).cuda())
print(type(copied.weight.data).__name__)
"""
GENERATED = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=512, eos_token_id=None)).cuda()
prompt = torch.ones(2, 8, dtype=torch.long, device="cuda")
for beams in (1, 2):
    out = model.generate(prompt, attention_mask=prompt, max_new_tokens=8, num_beams=beams, pad_token_id=0)
print("length", out.shape[0])
"""
LORA = """
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=512))
model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
rows = torch.utils.data.DataLoader(torch.ones(64, 32, dtype=torch.long), batch_size=4)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for tokens in rows:
    with accelerator.accumulate(model):
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_compiled_model_has_inductors_buffers(traced):
    done, trace = traced(COMPILED.format(before=""), steps=9, PATH="/nowhere")  # there is no C compiler
    assert done.returncode == 0, done.stderr
    assert (trace["steps"], trace["invented"], trace["unknown_calls"]) == (4, [], [])
    eager, compiled = map(int, done.stdout.split())
    # what is fused with its neighbours is not kept: at least one activation of 4096 x 1000 floats
    assert compiled <= eager - 4096 * 1000 * 4


def test_modules_are_copied_to_fakes_as_dynamo_copies_them(traced):
    done, trace = traced(FAKES)
    assert (done.stdout, done.stderr, trace["end"]) == ("FakeTensor\n", "", "script")


def test_a_graph_that_cannot_be_compiled_runs_eagerly_and_says_so(traced):
    done, trace = traced(COMPILED.format(before=FAILS), steps=9)
    assert done.returncode == 0, done.stderr
    assert any("could not compile" in answer for answer in trace["invented"])
    eager, compiled = map(int, done.stdout.split())
    assert compiled == pytest.approx(eager, rel=0.01)


def test_kernels_of_triton_are_launched_and_tuned_without_being_compiled(traced):
    done, trace = traced(TRITON, PATH="/nowhere")
    assert (done.returncode, done.stdout) == (0, "best 256\n"), done.stderr
    cache_to_flush = 256 * 2**20
    assert cache_to_flush in trace["events"]["size"]


def test_generation_ends_at_its_greatest_length(traced):
    done, trace = traced(GENERATED)
    assert (done.returncode, done.stdout) == (0, "length 2\n"), done.stderr
    assert trace["end"] == "script"


def test_accelerate_and_peft_train_only_the_adapter(traced):
    done, trace = traced(LORA, steps=2)
    assert done.returncode == 0, done.stderr
    assert trace["steps"] >= 2
    adapter = 4 * 64 + 3 * 64 * 4  # elements of A and B
    state = [entry for entry in trace["owned"] if entry["owner"] == "optimizer_state"][-1]
    sizes = dict(zip(trace["events"]["address"], trace["events"]["size"], strict=True))
    assert sum(sizes[address] for address in state["addresses"]) == pytest.approx(2 * 4 * adapter, abs=1024)
