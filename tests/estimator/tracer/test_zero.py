"""Optimizers that take steps of others within, as DeepSpeed's ZeRO does; a small one stands in for it."""

from pathlib import Path

STAGE3 = """
class DeepSpeedZeroOptimizer_Stage3:
    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
    def has_overflow(self):
        return True
    def step(self):
        if self.has_overflow():
            return  # as if an infinite gradient had been read back
        for _ in range(2):  # one step for each group of parameters
            self.optimizer.step()
            self.steps += 1
"""
PROGRAM = """
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
model = torch.nn.Linear(64, 64).cuda()
optimizer = DeepSpeedZeroOptimizer_Stage3(torch.optim.AdamW(model.parameters()))
for _ in range(20):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    print(optimizer.steps, flush=True)
    optimizer.step()
"""


def test_a_step_of_all_groups_is_one_and_none_is_skipped(traced, tmp_path: Path) -> None:
    package = tmp_path / "deepspeed" / "runtime" / "zero"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()  # or else an installed DeepSpeed would be found first
    (package / "stage3.py").write_text(STAGE3)
    done, trace = traced(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert (trace["end"], trace["steps"]) == ("steps", 3)
    assert done.stdout.split() == ["0", "2", "4"]
