"""Metrics, the constant beside the allocator, and what becomes of rows in the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy import fit, ours, plot, report, rows
from bench.accuracy.cache import Cache
from bench.accuracy.jobs import MIB, Job
from bench.accuracy.metrics import Answer, conserved, measure, percentile

CARD = 1000


def job(dataset: str = "timm", model: str = "resnet", truth: int = 100, **changes: object) -> Job:
    plain = Job(
        dataset, f"{model}_8", model, 8, "SGD", "a100-40gb", truth, {"peer": 50}, ("train.py", model), False
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def raw(reserved: int | None, status: str = "bounded") -> ours.Raw:
    return ours.Raw(reserved, reserved, 7, None, 1.0, status, reason="" if reserved else "it crashed")


def test_metrics_are_those_of_the_literature() -> None:
    found = measure([Answer(100, said, CARD) for said in (90, 100, 110, 150)])
    assert found.median == pytest.approx(0.1)
    assert found.mean == pytest.approx(0.175)
    assert found.p95 == pytest.approx(0.5)
    assert found.bias == pytest.approx(0.05)
    assert found.too_low == 0.25


def test_a_failure_is_a_row_that_is_wholly_wrong_and_too_low() -> None:
    found = measure([Answer(100, 100, CARD), Answer(100, None, CARD)])
    assert (found.rows, found.failed, found.too_low) == (2, 1, 0.5)
    assert found.mean == 0.5
    assert found.bias == 0


def test_a_run_that_lacked_memory_is_judged_by_whether_that_was_told() -> None:
    found = measure([Answer(900, 5000, CARD, True), Answer(900, 950, CARD, True), Answer(100, 100, CARD)])
    assert found.told_full == 0.5
    assert (found.rows, found.capped, found.median) == (3, 2, 0)


def test_a_limit_conserves_what_it_leaves_and_wastes_what_was_not_enough() -> None:
    assert conserved(Answer(100, 200, CARD)) == 0.8
    assert conserved(Answer(100, 5000, CARD)) == 0  # no more than the card can be given
    assert conserved(Answer(300, 200, CARD)) == -0.2
    assert conserved(Answer(300, None, CARD)) == 0


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 1))
def test_as_many_values_as_asked_for_lie_at_or_below_a_percentile(values: list[float], part: float) -> None:
    values.sort()
    found = percentile(values, part)
    assert found in values
    assert sum(value <= found for value in values) >= part * len(values) - 1e-9


def test_the_constant_is_fitted_on_one_half_of_the_models_only() -> None:
    names = [f"model{i}" for i in range(40)]
    fitted = [name for name in names if fit.is_fitted(name)]
    assert 8 < len(fitted) < 32
    points = [fit.Point(name, 1500 if fit.is_fitted(name) else 9999, 1000) for name in names]
    assert fit.beside_allocator(points) == 500
    with pytest.raises(ValueError, match="no model"):
        fit.beside_allocator([point for point in points if point.model not in fitted])


def test_the_rise_of_a_reading_has_the_allocator_alone() -> None:
    xmem = job("xmem", truth=110)
    row = rows.row_of(xmem, [raw(100), raw(111)], rows.outside_of([(xmem, [raw(100)])]))
    assert row.answers[rows.OURS] == 100 and row.answers[rows.BETTER] == 111
    assert row.held_out and row.error == pytest.approx(-10 / 110)


def test_what_has_no_constant_takes_the_products_own_number() -> None:
    row = rows.row_of(job("own"), [raw(100)], {})
    assert row.answers[rows.OURS] == 107


def test_the_margin_is_wider_where_something_was_assumed() -> None:
    peak = 100_000 * MIB
    assert rows.with_margin(peak, "exact") == peak + peak * 3 // 100
    assert rows.with_margin(peak, "bounded") == peak + peak * 12 // 100
    assert rows.with_margin(MIB, "exact") == 257 * MIB


def test_a_failed_row_is_kept_counted_and_named(tmp_path: Path) -> None:
    one = rows.row_of(job("xmem", "vgg"), [raw(100), raw(100)], {"xmem": 0})
    other = rows.row_of(job("xmem", "resnet"), [raw(None), raw(None)], {"xmem": 0})
    rows.add_peers([one, other], lambda _: None, {"rule": lambda job, census: 1})
    found = rows.metrics_of([one, other], {"a100-40gb": CARD})
    assert (found[rows.OURS].rows, found[rows.OURS].failed) == (2, 1)
    assert found["peer"].median == 0.5 and "rule" not in found
    text = report.off_rows([one, other])
    assert "resnet_8" in text and "it crashed" in text and "vgg_8" not in text


def test_only_the_section_on_measured_jobs_is_replaced() -> None:
    document = "# A\n\nkept\n\n## Against measured jobs\n\nold\n\n## Not measured yet\n\nkept, too\n"
    text = report.replaced(document, "## Against measured jobs\n\nnew")
    assert "old" not in text and text.count("kept") == 2
    assert report.replaced(text, "## Against measured jobs\n\nnew") == text


def test_the_picture_is_well_formed_and_names_every_estimator() -> None:
    picture = plot.draw({"a < b": {"ours": [0.1, -0.2, 5.0], "peer": [-0.4]}}, "ours")
    texts = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]
    assert {"a < b", "ours", "peer"} <= set(texts)


def test_a_cache_outlives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    Cache(file).put("estimate", ["a", "b"], {"peak": 1})
    with file.open("a") as lines:
        lines.write('{"key": "cut')
    assert Cache(file).get("estimate", ["a", "b"]) == {"peak": 1}
    assert Cache(file).get("allocator", ["a", "b"]) is None


def test_a_job_of_unknown_zero_grad_is_two_commands() -> None:
    command = ("xmem_cnn.py", "vgg19", "--zero-grad", "start")
    known = job(command=command)
    assert ours.variants(known) == [command]
    both = ours.variants(replace(known, zero_grad_known=False))
    assert [one[-1] for one in both] == ["start", "before-backward"]
