"""Whose the reserved bytes are."""

from hypothesis import given
from hypothesis import strategies as st

from estimator import owners
from estimator.allocator import replay
from estimator.owners import Owner
from tests.estimator.recording import Recording

MIB = 1024**2
PHASES = ("setup", "forward", "backward", "optimizer")


def split(recording: Recording) -> dict[str, int]:
    """Owners with bytes, checked to sum to the reserved peak."""
    read = recording.trace()
    replayed = replay(read.events)
    by_owner = owners.split(read, replayed).by_owner
    assert list(by_owner) == list(Owner)
    assert sum(by_owner.values()) == replayed.reserved_peak
    return {owner.value: count for owner, count in by_owner.items() if count}


def test_a_training_step():
    recording = Recording()
    weights = recording.alloc(30 * MIB)
    statistics = recording.alloc(12 * MIB)
    recording.mark("forward")
    batch = recording.alloc(14 * MIB)
    recording.touch("inputs", batch, 14 * MIB)
    hidden = recording.alloc(40 * MIB, in_module=True)
    workspace = recording.alloc(16 * MIB, in_module=True)
    recording.touch("workspaces", workspace, 16 * MIB)
    recording.mark("backward")
    gradient = recording.alloc(30 * MIB)
    scratch = recording.alloc(18 * MIB)
    recording.free(scratch, hidden, batch)
    recording.mark("optimizer", step=0)
    recording.own("parameters", weights)
    recording.own("gradients", gradient)
    moment = recording.alloc(30 * MIB)
    recording.mark("forward", step=1)
    recording.own("optimizer_state", moment)
    recording.own("buffers", statistics)
    assert split(recording) == {
        "parameters": 30 * MIB,
        "buffers": 12 * MIB,
        "gradients": 30 * MIB,
        "workspaces": 16 * MIB,
        "inputs": 14 * MIB,
        "activations": 40 * MIB,
        "temporaries": 18 * MIB,
        # the optimizer's state went into the freed block of the activations, whose rest is free
    }


def test_an_owner_later_is_the_owner_from_the_beginning():
    """The optimizer first tells what its state is after the step that allocated it at the peak."""
    recording = Recording("optimizer")
    recording.alloc(20 * MIB)
    state = recording.alloc(30 * MIB)
    recording.mark("forward", step=1)
    recording.own("optimizer_state", state)
    assert split(recording) == {"optimizer_state": 30 * MIB, "temporaries": 20 * MIB}


def test_an_address_means_the_block_that_was_there_at_that_time():
    """The activation of the peak lies where a gradient was before, and a gradient after."""
    recording = Recording("backward")
    gradient = recording.alloc(30 * MIB)
    recording.mark("optimizer")
    recording.own("gradients", gradient)
    recording.free(gradient)
    recording.mark("forward", step=1)
    assert recording.alloc(30 * MIB, in_module=True) == gradient
    recording.alloc(50 * MIB, in_module=True)
    recording.free(gradient)
    recording.mark("backward", step=1)
    recording.alloc(30 * MIB)
    recording.mark("optimizer", step=1)
    recording.own("gradients", gradient)
    assert split(recording) == {"activations": 80 * MIB}


def test_views_point_into_the_block_of_their_owner():
    recording = Recording("optimizer")
    flat = recording.alloc(30 * MIB)
    recording.mark("forward")
    recording.own("parameters", flat + 10 * MIB)
    recording.own("gradients", flat + 30 * MIB, 1)  # behind the block, and nowhere
    assert split(recording) == {"parameters": 30 * MIB}


def test_copies_into_blocks_of_a_module_are_not_inputs():
    """Nor is a block that was there before the copy: a model's own constant or a static buffer."""
    recording = Recording("forward")
    before = recording.alloc(12 * MIB)
    recording.mark("forward", step=1)
    inside = recording.alloc(14 * MIB, in_module=True)
    outside = recording.alloc(16 * MIB)
    for address, size in ((before, 12), (inside, 14), (outside, 16)):
        recording.touch("inputs", address, size * MIB)
    assert split(recording) == {"activations": 26 * MIB, "inputs": 16 * MIB}


def test_a_workspace_that_was_freed_is_not_the_block_that_took_its_place():
    recording = Recording("forward")
    workspace = recording.alloc(30 * MIB, in_module=True)
    recording.touch("workspaces", workspace, 30 * MIB)
    recording.free(workspace)
    assert recording.alloc(29 * MIB + 512, in_module=True) == workspace
    recording.alloc(20 * MIB, in_module=True)
    assert split(recording) == {"activations": 50 * MIB}


def test_a_workspace_is_kept_over_the_steps():
    recording = Recording("forward")
    workspace = recording.alloc(16 * MIB, in_module=True)
    recording.touch("workspaces", workspace, 16 * MIB)
    recording.mark("forward", step=1)
    recording.alloc(100 * MIB, in_module=True)
    assert split(recording) == {"workspaces": 16 * MIB, "activations": 100 * MIB}


def test_before_training_only_module_calls_make_activations():
    recording = Recording("setup")
    recording.alloc(12 * MIB)
    recording.alloc(14 * MIB, in_module=True)
    assert split(recording) == {"other": 12 * MIB, "activations": 14 * MIB}


def test_slack_is_what_no_block_holds():
    recording = Recording("forward")
    recording.free(recording.alloc(40 * MIB))
    recording.alloc(25 * MIB)
    recording.alloc(100)
    assert split(recording) == {"activations": 40 * MIB, "slack": 2 * MIB}


def test_nothing_allocated_is_nothing_owned():
    assert split(Recording()) == {}


@given(st.data())
def test_law_owners_sum_to_the_reserved_peak(data):
    """Whatever the marks and claims are: `split` checks the sum."""
    recording = Recording(data.draw(st.sampled_from(PHASES)))
    live: list[int] = []
    seen = [0]
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["alloc", "alloc", "free", "mark", "own", "touch"]))
        address = data.draw(st.sampled_from(seen)) + data.draw(st.integers(0, MIB))
        if what == "alloc":
            live.append(
                recording.alloc(data.draw(st.integers(1, 30 * MIB)), in_module=data.draw(st.booleans()))
            )
            seen.append(live[-1])
        elif what == "free" and live:
            recording.free(live.pop())
        elif what == "mark":
            recording.mark(data.draw(st.sampled_from(PHASES)))
        elif what == "own":
            recording.own(data.draw(st.sampled_from(["parameters", "gradients", "buffers"])), address)
        elif what == "touch":
            recording.touch(data.draw(st.sampled_from(["inputs", "workspaces"])), address, 512)
    split(recording)


def test_activations_are_the_innermost_module_s():
    recording = Recording()
    calls = []

    def during(module: int) -> None:
        calls.append((len(recording.columns["action"]), module))

    recording.mark("forward")
    recording.alloc(1 * MIB, in_module=True)
    during(0)
    recording.alloc(2 * MIB, in_module=True)
    during(1)
    recording.alloc(4 * MIB, in_module=True)
    gone = recording.alloc(8 * MIB, in_module=True)
    recording.free(gone)
    during(0)
    recording.alloc(16 * MIB, in_module=True)
    during(-1)
    recording.mark("backward")
    recording.alloc(32 * MIB)
    events, modules = zip(*calls, strict=True)
    read = recording.trace(
        modules=["", "layers.0.mlp"], calls={"event": list(events), "module": list(modules)}
    )
    replayed = replay(read.events)
    found = owners.split(read, replayed)
    assert found.by_module == {"": 19 * MIB, "layers.0.mlp": 4 * MIB}
    assert sum(found.by_module.values()) == found.by_owner[Owner.ACTIVATIONS]
