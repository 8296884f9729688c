"""The other estimators, on a model that is small enough to be counted by hand."""

import math
from pathlib import Path

import pytest

from bench.accuracy import peers
from bench.accuracy.census import Census, Layer
from bench.accuracy.jobs import Job
from bench.accuracy.peers import fake_tensors, learned, seconds

BATCH = 4
# Linear(10, 20), ReLU, Dropout, Linear(20, 5): 220 + 105 parameters
LAYERS = (
    Layer("Linear", 220, 40, 80),
    Layer("ReLU", 0, 80, 80),
    Layer("Dropout", 0, 80, 80),
    Layer("Linear", 105, 80, 20),
)
CENSUS = Census({"float32": 325}, {"int64": 1}, 4, LAYERS, 40)


def job(model: str = "small", optimizer: str = "Adam", dataset: str = "xmem", **others: object) -> Job:
    settings: dict[str, object] = {
        "dataset": dataset,
        "name": f"{model}-{optimizer}",
        "model": model,
        "batch": BATCH,
        "optimizer": optimizer,
        "gpu": "a100-40gb",
        "truth_bytes": 1,
        "published": {},
        "command": (),
        "capped": False,
    }
    return Job(**(settings | others))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("accelerate", 4 * 4 * 325),
        ("DeepSpeed", 20 * 325),
        ("Horus", 4 * (260 + 325 + BATCH * 325)),
        # weights, gradients, two moments, a buffer; four results, and the mask of the dropout
        ("factorised", 4 * 325 * 4 + 8 + 260 * 4 + 80),
    ],
)
def test_formulas_on_a_model_counted_by_hand(peer: str, expected: int):
    assert peers.PEERS[peer](job(), CENSUS) == expected


def test_factorised_knows_what_the_optimizer_keeps():
    def answer(**which: str) -> int:
        found = peers.PEERS["factorised"](job(**which), CENSUS)
        assert found is not None
        return found

    tensor = 4 * 325
    plain = answer(optimizer="SGD")
    assert answer(optimizer="Adagrad") == plain + tensor
    assert answer(optimizer="AdamW") == plain + 2 * tensor
    assert answer(optimizer="SGD", dataset="timm") == plain + tensor  # with momentum
    assert peers.PEERS["factorised"](job(optimizer="optimizer"), CENSUS) is None


def test_factorised_counts_indices_of_pooling_and_no_views():
    assert peers.layers.activation_bytes(Layer("MaxPool2d", 0, 40, 10)) == 10 * (4 + 8)
    assert peers.layers.activation_bytes(Layer("Flatten", 0, 40, 40)) == 0


def test_every_peer_tells_its_source():
    assert {*peers.PEERS, *peers.LEARNED, fake_tensors.NAME} <= peers.SOURCES.keys()


def test_folds_never_share_an_architecture():
    models = [name for k in range(30) for name in [f"timm/res_net{k}"] * (k % 4 + 1) + [f"ResNet{k}"]]
    fold_of = learned.folds_by_model(models)
    folds = [
        {learned.architecture(m) for m, f in zip(models, fold_of, strict=True) if f == k} for k in range(5)
    ]
    assert all(folds)
    assert sum(len(names) for names in folds) == len(set().union(*folds)) == 30
    sizes = [fold_of.count(k) for k in range(5)]
    assert max(sizes) - min(sizes) <= 1


def test_fewer_models_than_folds_cannot_be_split():
    with pytest.raises(ValueError, match="2 models cannot be split into 5 folds"):
        learned.folds_by_model(["a", "b", "A"])


def test_a_range_is_that_of_the_data_set():
    assert learned.range_of(job(truth_bytes=7999 * learned.MIB)) == 0
    assert learned.range_of(job(truth_bytes=8000 * learned.MIB)) == 1
    assert learned.range_of(job(truth_bytes=99_000 * learned.MIB)) == learned.RANGES - 1
    assert learned.range_of(job(dataset="mlp", truth_bytes=1500 * learned.MIB)) == 1


def test_answers_never_come_from_rows_of_the_same_model(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    rows = [
        (job(f"model{k % 10}", name=str(k), truth_bytes=10**9 * (k % 10 + 1), capped=k == 3), CENSUS)
        for k in range(40)
    ]
    taught: list[set[str]] = []
    asked: list[set[str]] = []
    fit, predict = learned.fit, learned.predict

    def fitted(inputs, jobs):
        assert not any(one.capped for one in jobs)
        taught.append({one.model for one in jobs})
        return fit(inputs, jobs, steps=2)

    def predicted(network, inputs, jobs):
        asked.append({one.model for one in jobs})
        return predict(network, inputs, jobs)

    monkeypatch.setattr(learned, "fit", fitted)
    monkeypatch.setattr(learned, "predict", predicted)
    answers = learned.out_of_fold(rows)
    assert answers.keys() == {("xmem", str(k)) for k in range(40)}
    assert len(taught) == learned.FOLDS
    assert all(not known & new for known, new in zip(taught, asked, strict=True))


def test_the_network_learns_a_law():
    torch = pytest.importorskip("torch")
    jobs = [job(name=str(k), truth_bytes=int(10**9 * math.exp(k / 60))) for k in range(200)]
    inputs = torch.tensor([[k / 40, 1.0] for k in range(200)])
    answers = learned.predict(learned.fit(inputs, jobs, steps=250), inputs, jobs)
    errors = sorted(abs(answers["xmem", one.name].regressed_bytes / one.truth_bytes - 1) for one in jobs)
    assert errors[len(errors) // 2] < 0.03
    ranges = [answers["xmem", one.name].range_bytes >= one.truth_bytes for one in jobs]
    assert sum(ranges) > 0.9 * len(jobs)


def test_answers_of_an_earlier_run_are_known(tmp_path: Path):
    results = tmp_path / "memtracker.jsonl"
    assert fake_tensors.known(results) == {}
    fake_tensors.known.cache_clear()
    results.write_text(
        '{"dataset": "xmem", "name": "a", "bytes": 7, "wall_s": 1.0, "cpu_s": 1.0}\n'
        '{"dataset": "xmem", "name": "b", "error": "RuntimeError: no"}\n'
    )
    assert fake_tensors.known(results) == {("xmem", "a"): 7, ("xmem", "b"): None}
    assert fake_tensors.seconds(results) == [1.0]
    said = [fake_tensors.said(job(name=name), results) for name in ("a", "b", "never asked")]
    assert said == [{"MemTracker": 7}, {"MemTracker": None}, {}]


SCRIPT = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(1000, 1000, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model.to("cuda")
for inputs in DataLoader([torch.ones(1000)] * 8, batch_size=2, shuffle=True):
    loss = model(inputs.to("cuda")).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
    optimizer.zero_grad()
"""


def test_mem_tracker_follows_a_script_as_it_is(tmp_path: Path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    peak, used = fake_tensors.track([str(script)])
    assert used.wall_s > 0
    # weights, momentum, gradient; next to nothing else
    assert peak == pytest.approx(3 * 4 * 10**6, rel=0.01)


def test_a_run_that_fails_is_told(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'RuntimeError: no data' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(fake_tensors.TrackError, match="RuntimeError: no data"):
        fake_tensors.track(["script.py"], str(python))
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(fake_tensors.TrackError, match="not done after 0 s"):
        fake_tensors.track(["script.py"], str(python), timeout_s=0.1)


def test_seconds_are_of_jobs_spread_over_the_data_sets():
    jobs = [job(name=str(k), dataset=dataset) for dataset in ("xmem", "timm") for k in range(10)]
    chosen = [(one.dataset, one.name) for one in seconds.spread(jobs, 2)]
    assert chosen == [("xmem", "0"), ("xmem", "5"), ("timm", "0"), ("timm", "5")]


def test_seconds_of_a_peer_are_those_of_what_it_needs(tmp_path: Path):
    results = tmp_path / "seconds.json"
    assert seconds.seconds_of("Horus", results) is None
    results.write_text('{"census_cpu_s": 5.0, "MemTracker_cpu_s": 18.0}')
    assert [seconds.seconds_of(name, results) for name in ("Horus", peers.LEARNED[0], "MemTracker", "xMem")] == [
        5.0, 5.0, 18.0, None
    ]  # fmt: skip
