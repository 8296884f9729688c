"""What hangs on the workspaces that libraries were taken to ask for."""

from __future__ import annotations

import pytest

from estimator import workspaces
from estimator.allocator import DEFAULT_CONFIG, replay
from estimator.bounds import of_trace
from tests.estimator.recording import Recording

MIB = 1024**2
INVENTED = {"invented": [workspaces.CONVOLUTION]}


def convolution(recording: Recording, result: int, workspace: int) -> int:
    """As PyTorch does it: the result, then the workspace, which is freed at once."""
    address = recording.alloc(result)
    scratch = recording.alloc(workspace)
    recording.touch("workspaces", scratch, workspace, cudnn=True)
    recording.free(scratch)
    return address


def trained(workspace: int, kept: int = 100 * MIB):
    """Something kept, and a convolution."""
    recording = Recording("forward")
    recording.alloc(kept)
    result = convolution(recording, 20 * MIB, workspace)
    recording.mark("backward")
    recording.free(result)
    return recording.trace(**INVENTED)


def test_workspaces_are_found_by_place_and_size():
    trace = trained(30 * MIB)
    (found,) = workspaces.asked_for(trace, workspaces.CONVOLUTION).items()
    assert found[1] == 30 * MIB
    assert trace.events.size[found[0]] == 30 * MIB


@pytest.mark.parametrize(("factor", "reserved"), [(0, 120), (1, 150), (2, 180)])
def test_a_history_with_other_workspaces(factor, reserved):
    trace = trained(30 * MIB)
    found = workspaces.asked_for(trace, workspaces.CONVOLUTION)
    other = workspaces.scaled(trace.events, found, factor)
    replayed = replay(other)
    assert replayed.reserved_peak == reserved * MIB
    assert replayed.live[0].requested == 100 * MIB


def test_what_hangs_on_them_makes_a_bound_of_so_many_bytes():
    trace = trained(30 * MIB)
    (bound,) = of_trace(trace, replay(trace.events), DEFAULT_CONFIG)
    assert (bound.what, bound.kind, bound.bytes) == (workspaces.CONVOLUTION, "library", 30 * MIB)


def test_what_changes_little_of_the_peak_is_no_bound():
    trace = trained(12 * MIB, kept=2000 * MIB)
    assert of_trace(trace, replay(trace.events), DEFAULT_CONFIG) == []


@pytest.mark.parametrize(("largest", "bounds"), [(0, 0), (1 * MIB, 0), (5 * MIB, 1)])
def test_where_none_was_asked_for_the_most_that_could_have_been_counts(largest, bounds):
    recording = Recording("forward")
    recording.alloc(200 * MIB)
    trace = recording.trace(**INVENTED, largest_convolution=largest)
    found = of_trace(trace, replay(trace.events), DEFAULT_CONFIG)
    assert [bound.bytes for bound in found] == [largest] * bounds


def test_workspaces_of_cusolver_count_by_themselves():
    recording = Recording("optimizer")
    recording.alloc(100 * MIB)
    scratch = recording.alloc(50 * MIB)
    recording.touch("workspaces", scratch, 50 * MIB, cusolver=True)
    recording.free(scratch)
    recording.free(convolution(recording, 20 * MIB, 30 * MIB))
    trace = recording.trace(invented=[*workspaces.ASSUMED, "cusolver workspace of unknown size"])
    replayed = replay(trace.events)
    found = {bound.what: bound.bytes for bound in of_trace(trace, replayed, DEFAULT_CONFIG)}
    assert found[workspaces.SOLVER] == 50 * MIB
    assert found["cusolver workspace of unknown size"] is None
    without_rules = {bound.what: bound.bytes for bound in of_trace(trace, replayed)}
    assert without_rules[workspaces.SOLVER] == 50 * MIB


def attended(workspace: int, kept: int = 100 * MIB):
    """A backward pass of attention: the workspace lies behind what the frontend needs."""
    recording = Recording("backward")
    recording.alloc(kept)
    scratch = recording.alloc(20 * MIB + workspace)
    recording.touch("workspaces", scratch + 20 * MIB, workspace, attention=True)
    recording.free(scratch)
    return recording.trace(invented=[workspaces.ATTENTION])


@pytest.mark.parametrize(("factor", "reserved"), [(0, 120), (1, 150), (2, 180)])
def test_of_an_attention_only_what_cudnn_asked_for_is_replayed_otherwise(factor, reserved):
    trace = attended(30 * MIB)
    found = workspaces.asked_for(trace, workspaces.ATTENTION)
    assert workspaces.asked_for(trace, workspaces.CONVOLUTION) == {}
    assert replay(workspaces.scaled(trace.events, found, factor)).reserved_peak == reserved * MIB


@pytest.mark.parametrize(("workspace", "bounds"), [(256, []), (30 * MIB, [30 * MIB])])
def test_an_attention_makes_a_bound_where_its_workspace_matters(workspace, bounds):
    trace = attended(workspace, kept=2000 * MIB)
    found = of_trace(trace, replay(trace.events), DEFAULT_CONFIG)
    assert [bound.bytes for bound in found] == bounds
