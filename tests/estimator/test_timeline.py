"""Memory over the course of a run, and the pictures of it."""

import json
import re
import struct
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.allocator import replay
from estimator.owners import Owner, split
from estimator.plot import draw, style
from estimator.timeline import NO_STACK, timeline
from tests.estimator.recording import Recording

MIB = 1024**2
SVG = "{http://www.w3.org/2000/svg}"


def training() -> Recording:
    """Weights, then two steps with an input, activations, a gradient and temporaries; state from the first."""
    recording = Recording()
    weights = recording.alloc(30 * MIB)
    for step in range(2):
        recording.mark("forward", step)
        batch = recording.alloc(12 * MIB)
        recording.touch("inputs", batch, 12 * MIB)
        activations = [recording.alloc(20 * MIB, in_module=True) for _ in range(3)]
        recording.mark("backward", step)
        gradient = recording.alloc(30 * MIB)
        recording.free(recording.alloc(14 * MIB), *activations)
        recording.mark("optimizer", step)
        recording.own("parameters", weights)
        recording.own("gradients", gradient)
        if step == 0:
            state = recording.alloc(60 * MIB)
        recording.mark("forward", step + 1)
        recording.own("optimizer_state", state)
        recording.free(gradient, batch)
    return recording


def test_the_peak_is_split_as_the_estimate_splits_it():
    trace = training().trace()
    done = replay(trace.events)
    course = timeline(trace, done.busiest_event)
    by_owner = {name: row[course.peak] for name, row in zip(course.owners, course.bytes, strict=True)}
    expected = {
        owner.value: size for owner, size in split(trace, done).by_owner.items() if size and owner != "slack"
    }
    assert {name: size for name, size in by_owner.items() if size} == expected
    assert expected == {
        "parameters": 30 * MIB, "optimizer_state": 60 * MIB, "inputs": 12 * MIB, "activations": 60 * MIB,
        "temporaries": 14 * MIB, "gradients": 30 * MIB,
    }  # fmt: skip
    assert course.allocated_peak == done.allocated_peak
    assert course.reserved_peak == done.reserved_peak
    assert style.moment(course, course.peak) == "step 2, backward"


def test_owners_come_in_one_order_and_the_course_returns_to_what_stays():
    course = timeline(training().trace())
    assert course.owners == tuple(o.value for o in Owner if o.value in course.owners)
    last = {name: row[-1] for name, row in zip(course.owners, course.bytes, strict=True)}
    assert {name: size for name, size in last.items() if size} == {
        "parameters": 30 * MIB,
        "optimizer_state": 60 * MIB,
    }


def test_intervals_follow_each_other():
    course = timeline(training().trace())
    assert [(i.phase, i.step) for i in course.intervals][:5] == [
        ("setup", 0), ("forward", 0), ("backward", 0), ("optimizer", 0), ("forward", 1),
    ]  # fmt: skip
    for one, following in pairwise(course.intervals):
        assert one.end == following.begin
    assert (course.intervals[0].begin, course.intervals[-1].end) == (0, course.events)


def test_the_places_that_hold_the_peak():
    recording = training()
    recording.columns["stack"][-5] = -1
    big = recording.alloc(900 * MIB)
    recording.columns["stack"][-1] = -1
    recording.free(big)
    course = timeline(recording.trace())
    assert course.top[0].frames == (NO_STACK,)
    assert course.top[0].bytes == 900 * MIB
    assert course.top[1].frames == ("train.py:7 <module>",)
    assert sum(place.bytes for place in course.top) == course.allocated_peak


def test_other_owners_can_be_told():
    """Owners by module, say: any names, drawn in colours of their own."""
    trace = training().trace()
    course = timeline(
        trace, owners_of=lambda trace, events: [f"layer.{event % 2}" for event in range(len(events))]
    )
    assert course.owners == ("layer.0", "layer.1")
    assert len(set(style.colours(course.owners))) == 2


@given(st.integers(1, 5000))
def test_law_a_long_course_is_thinned_out_and_keeps_its_peak(count):
    recording = Recording("forward")
    recording.alloc(MIB)
    spike = recording.alloc(64 * MIB)
    recording.free(spike)
    for _ in range(count):
        recording.event(1000, 0, 0)
    recording.columns["action"] = [min(code, 7) for code in recording.columns["action"]]
    course = timeline(recording.trace())
    assert len(course.at) <= 601
    assert course.allocated_peak == 65 * MIB
    assert list(course.at) == sorted(course.at)


def test_the_svg_is_well_formed_and_stays_within_its_frame():
    tree = ET.fromstring(draw(timeline(training().trace()), "a <b> & 'c'", ".svg"))
    assert tree.find(f"{SVG}title").text.startswith("a <b> & 'c': 206.0 MiB allocated")
    width = float(tree.get("width"))
    assert width == 800
    for area in tree.iter(f"{SVG}path"):
        for x, y in re.findall(r"([\d.]+),(-?[\d.]+)", area.get("d")):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= float(tree.get("height"))
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert {"MiB", "parameters", "optimizer state", "reserved"} <= set(texts)
    assert "peak 206.0 MiB, step 2, backward" in texts


def test_the_page_loads_nothing_and_holds_no_markup_of_the_trace():
    recording = training()
    content = recording.as_json()
    content["frames"] = [["</script><script>alert(1)//.py", 1, "</script>"], ["<img src=x>", 2, "f"]]
    from estimator import trace

    page = draw(timeline(trace.parse(json.dumps(content).encode(), "x")), "</script><b>", ".html").decode()
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "http" not in page.replace("http-equiv", "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert len(data["at"]) == len(data["reserved"])


def test_the_png_is_1600_pixels_wide():
    pytest.importorskip("matplotlib")
    data = draw(timeline(training().trace()), "train.py", ".png")
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">I", data[16:20]) == (1600,)


def test_no_other_pictures():
    with pytest.raises(ValueError, match=r"\.gif"):
        draw(timeline(training().trace()), "x", ".gif")


@pytest.mark.parametrize(
    ("most", "count", "step"), [(20.7, 11, 2), (14546, 8, 2000), (6.0, 7, 1), (0.9, 10, 0.1), (300, 7, 50)]
)
def test_ticks_are_round(most, count, step):
    assert style.ticks(most) == pytest.approx([step * index for index in range(count)])


@given(st.floats(0.01, 1e9))
def test_law_ticks_are_few_equally_far_apart_and_within(most):
    ticks = style.ticks(most)
    assert 1 <= len(ticks) <= 16
    assert ticks[0] == 0
    assert ticks[-1] <= most * 1.000001


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (2.5, "2.5"), (12000, "12k"), (2_000_000, "2M")])
def test_numbers_of_ticks(value, text):
    assert style.number(value) == text
