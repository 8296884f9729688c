"""Optimizers and whitening that factorise matrices, traced with the real torch."""

SOAP = """
import torch
from torch.linalg import eigh, qr

class Soap(torch.optim.Optimizer):
    '''As SOAP and Shampoo do it: both sides of a gradient, rotated into the eigenvectors of their covariances.'''
    def __init__(self, params): super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"] if p.dim() == 2):
            state, g = self.state[p], p.grad
            if not state:
                state["sides"] = [g @ g.T, g.T @ g]
                state["bases"] = [eigh(side + 1e-12 * torch.eye(len(side), device="cuda"))[1] for side in state["sides"]]
            else:
                for side, new in zip(state["sides"], (g @ g.T, g.T @ g)): side.lerp_(new, 0.05)
                state["bases"] = [qr(side @ basis)[0] for side, basis in zip(state["sides"], state["bases"])]
            left, right = state["bases"]
            p.sub_(left @ (left.T @ g @ right).sign() @ right.T, alpha=1e-3)
"""
SHAMPOO = """
import torch

def by_eigenvalues(a):
    values, vectors = torch.linalg.eigh(a + 1e-6 * torch.eye(len(a), device="cuda"))
    if not torch.isfinite(values).all() or vectors.isnan().any(): raise ArithmeticError("not finite")
    return vectors * values.clamp_min(1e-6).pow(-0.25) @ vectors.T

def by_newton(a, most=50):
    eye, steps = torch.eye(len(a), device="cuda"), 0
    z = 5 / (2 * torch.linalg.norm(a))
    x, m = z.pow(0.25) * eye, z * a
    while torch.dist(m, eye, torch.inf) > 1e-6 and steps < most:
        t, steps = (5 * eye - m) / 4, steps + 1
        x, m = x @ t, torch.linalg.matrix_power(t, 4) @ m
    return x

class Shampoo(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"] if p.dim() == 2):
            left, right = by_eigenvalues(p.grad @ p.grad.T), by_newton(p.grad.T @ p.grad)
            p.sub_(left @ p.grad @ right, alpha=1e-3)
"""
TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(512, 768), torch.nn.ReLU(), torch.nn.Linear(768, 512)).cuda()
optimizer = {optimizer}(model.parameters())
for step in range(5):
    x = torch.randn(16, 512, device="cuda")
    loss = (model(x) - x).square().mean()
    {extra}
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
    print(step, loss.item())
"""
WHITENED = """
    cov = x.T @ x + torch.eye(512, device="cuda")
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(cov), x.T, upper=False)
    u, s, v = torch.linalg.svd(model[0].weight, full_matrices=False)
    loss = loss + torch.linalg.slogdet(cov)[1] + torch.linalg.lstsq(cov, x.T).solution.mean() + torch.linalg.inv(cov).mean()
    loss = loss + torch.linalg.eig(cov).eigenvalues.abs().mean() + torch.linalg.eigvals(cov).abs().mean() + torch.linalg.eigvals(model[0].weight[:512]).abs().mean() + white.mean() + s.sum()
"""
MATRIX = 768 * 768 * 4


def largest(trace: dict) -> int:
    return max(touched["bytes"] for touched in trace["touched"] if touched["cusolver"])


def test_soap_steps(traced):
    done, trace = traced(SOAP + TRAINING.format(optimizer="Soap", extra=""))
    assert done.returncode == 0, done.stderr
    assert (trace["steps"], trace["end"]) == (3, "steps")
    assert trace["unknown_calls"] == []
    assert trace["invented"] == ["cusolver workspace"]
    assert 3 * MATRIX < largest(trace) < 3.5 * MATRIX


def test_shampoo_steps(traced):
    done, trace = traced(SHAMPOO + TRAINING.format(optimizer="Shampoo", extra=""))
    assert done.returncode == 0, done.stderr
    assert (trace["steps"], trace["end"]) == (3, "steps")
    assert trace["unknown_calls"] == []
    assert 3 * MATRIX < largest(trace) < 3.5 * MATRIX


def test_whitening_and_other_factors(traced):
    program = "import torch\n" + TRAINING.format(optimizer="torch.optim.SGD", extra=WHITENED.strip())
    done, trace = traced(program)
    assert done.returncode == 0, done.stderr
    assert (trace["steps"], trace["end"]) == (3, "steps")
    assert trace["unknown_calls"] == []
    assert trace["invented"] == ["cusolver workspace", "cusolver workspace of unknown size"]
