from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.gres import REQUEST_FIELDS, Unsupported, as_shards, parse, single_gpu

ONE_GPU = [
    ({"tres_per_node": "gres:gpu:1"}, "gpu:1"),
    ({"tres_per_node": "gres:gpu"}, "gpu:1"),
    ({"tres_per_node": "gres:gpu:a100:1"}, "gpu:a100:1"),
    ({"tres_per_node": "gres:gpu:a100"}, "gpu:a100:1"),
    ({"tres_per_node": "gres/gpu:1"}, "gpu:1"),
    ({"tres_per_node": "gres/gpu=1"}, "gpu:1"),
    ({"tres_per_node": "gres/gpu:a100=1"}, "gpu:a100:1"),
    ({"tres_per_node": "gpu:a100:1"}, "gpu:a100:1"),
    ({"tres_per_node": "gres:gpu:1(S:0-1)"}, "gpu:1"),
    ({"tres_per_job": "gres:gpu:1"}, "gpu:1"),
    ({"tres_per_task": "gres:gpu:1"}, "gpu:1"),
    ({"tres_per_task": "cpu=4,gres/gpu=1"}, "gpu:1"),
    ({"tres_per_job": "gres:gpu:1", "tres_per_node": "gres:gpu:a100:1"}, "gpu:a100:1"),
]


@pytest.mark.parametrize(("fields", "asked"), ONE_GPU)
def test_one_gpu_in_every_spelling(fields: dict[str, str], asked: str) -> None:
    assert single_gpu(fields, tasks=1).asked == asked


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no GPU"),
        ({"tres_per_node": "gres:gpu:0"}, "not exactly one"),
        ({"tres_per_node": "gres:gpu:2"}, "not exactly one"),
        ({"tres_per_node": "gres:gpu:1k"}, "not exactly one"),
        ({"tres_per_job": "gres/gpu=8"}, "not exactly one"),
        ({"tres_per_node": "gres:gpu:1g.5gb:1"}, "MIG"),
        ({"tres_per_node": "gres:gpu:a100_1g.10gb:1"}, "MIG"),
        ({"tres_per_node": "gres:gpu:nvidia_a100_80gb_pcie_3g.40gb:1"}, "MIG"),
        ({"tres_per_node": "gres:gpu:1,gres:lustre:1"}, "asks for lustre too"),
        ({"tres_per_node": "gres:gpu:1,gres:mps:50"}, "asks for mps too"),
        ({"tres_per_node": "gres:mps:50"}, "asks for mps too"),
        ({"tres_per_node": "gres:shard:4"}, "asks for shard too"),
        ({"tres_per_node": "gres:gpu:a100:1,gres:gpu:h100:1"}, "several types"),
        ({"tres_per_socket": "gres:gpu:1"}, "per socket"),
        ({"tres_per_node": "gres:gpu:a:b:c:1"}, "not understood"),
        ({"tres_per_node": "gres:gpu::1"}, "not understood"),
        ({"tres_per_node": "gres:"}, "not understood"),
    ],
)
def test_anything_else_is_refused_with_its_reason(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        single_gpu(fields, tasks=1)


def test_a_gpu_for_each_of_two_tasks_is_two() -> None:
    with pytest.raises(Unsupported, match="not exactly one"):
        single_gpu({"tres_per_task": "gres:gpu:1"}, tasks=2)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tres_per_node": "gres:gpu:1"}, {"tres_per_node": "gres:shard:24"}),
        ({"tres_per_node": "gres/gpu:1"}, {"tres_per_node": "gres/shard:24"}),
        ({"tres_per_job": "gres:gpu:1"}, {"tres_per_node": "gres:shard:24", "tres_per_job": ""}),
        (
            {"tres_per_task": "cpu=4,gres/gpu=1"},
            {"tres_per_node": "gres/shard:24", "tres_per_task": "cpu=4"},
        ),
    ],
)
def test_shards_replace_the_gpu_in_the_same_spelling(
    fields: dict[str, str], expected: dict[str, str]
) -> None:
    assert as_shards(fields, single_gpu(fields, 1), 24) == expected


@given(st.dictionaries(st.sampled_from(REQUEST_FIELDS), st.text(max_size=40)), st.integers(1, 99))
def test_no_text_breaks_the_reader_and_a_rewrite_leaves_no_gpu(fields: dict[str, str], shards: int) -> None:
    try:
        request = single_gpu(fields, 1)
    except Unsupported:
        return
    rewritten = {**fields, **as_shards(fields, request, shards)}
    items = [item for text in rewritten.values() for item in parse(text) if item.name in ("gpu", "shard")]
    assert [(item.name, item.count) for item in items] == [("shard", shards)]
