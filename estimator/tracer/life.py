"""How far a program is walked: when a pass over a data loader, and when the whole process, has shown enough.

Counts only, no clock: the same program ends at the same place on every machine.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

PATIENCE = 256  # batches of a pass, or backward passes, that lead to no optimizer step
STEPS_ON_ONE_BATCH = 32  # inner loops (PPO's) step often on one batch; more is a loop without its loader
LATE_OPTIMIZER = 4  # times the steps: how long an optimizer that never steps is waited for
UNEVALUATED_PASSES = 10  # of a program that would evaluate, but not after each epoch
GROWING_PASS = 8  # batches of a pass after which memory that grew with each of the last ones is said to grow
GROWING_BATCHES = 4
UNEVALUATED_STEPS = 512  # of a loop without a loader, after which an evaluation comes
SETTLING_STEPS = 8  # of such a loop, until its peak is the same in each
STEADY_FORWARDS = 512  # of a program that only infers
MAX_PASSES = 1000  # that are told of


class Pass:
    """One walk over a data loader: from its first batch to its end."""

    def __init__(self, length: Optional[int], life: Life) -> None:
        self.length = length
        self.batches = 0
        self.batch: Optional[int] = None
        self.shapes: List[Any] = []
        self.shape_count = 0
        self.allocated: List[int] = []
        self.ended = self.cut = False
        self.can_be_cut = True
        self.grows_by = 0
        self.is_held = False
        self.steps_at_start = life.steps_so_far()
        self._life: Optional[Life] = life
        self._backwards, self._evaluations = life.backwards, life.evaluations

    @property
    def backwards(self) -> int:
        """Backward passes from its start to its end."""
        return self._backwards if self._life is None else self._life.backwards - self._backwards

    @property
    def evaluations(self) -> int:
        """Forward passes without gradients from its start to its end."""
        return self._evaluations if self._life is None else self._life.evaluations - self._evaluations

    def end(self, cut: bool) -> None:
        """From now on nothing that happens belongs to it."""
        self._backwards, self._evaluations = self.backwards, self.evaluations
        self._life, self.ended, self.cut = None, True, cut

    @property
    def kind(self) -> str:
        """What its batches are for: "training", "evaluation" or "other"."""
        if self.backwards:
            return "training"
        return "evaluation" if self.evaluations else "other"

    def left_out(self) -> Optional[int]:
        """Batches that were not run; None if the loader has no length."""
        if self.ended and not self.cut:
            return 0
        return None if self.length is None else max(0, self.length - self.batches)


class Life:
    """What one process did so far; `end` ends it."""

    def __init__(
        self,
        steps: int,
        end: Callable[[str], None],
        evaluates_later: Callable[[], bool] = lambda: False,
        steps_left: Callable[[int], int] = lambda steps: 0,
    ) -> None:
        """`evaluates_later` tells whether there is code for it that was not reached.

        `steps_left`, given the steps so far, tells how many more a loop without a loader takes; 0 if that is
        too far to go.
        """
        self._wanted = steps
        self._end = end
        self._evaluates_later = evaluates_later
        self._steps_left = steps_left
        self._settled_at = 0
        self._last_step: Optional[int] = None  # of a loop without a loader that is walked to its end
        self._steps: Dict[int, int] = {}
        self._optimizers: Set[int] = set()
        self._since_batch: Dict[int, int] = {}
        self._since_training: Optional[Dict[int, int]] = None
        self._highest, self._highest_at = 0, 0
        self._pass: Optional[Pass] = None
        self.backwards = self.forwards = self.evaluations = 0
        self.passes: List[Pass] = []
        self.training_passes = 0
        self.is_managed = False  # a framework was told how far to train: it ends by itself

    # --- what happens ---

    def knows(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self._optimizers.add(id(optimizer))

    def took_step(self, optimizer: Any) -> None:
        """An optimizer's step is over."""
        self._optimizers.add(id(optimizer))
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def may_end(self) -> None:
        """Called after a step: ends the process if training was seen long enough."""
        if self._has_trained_enough():
            self._end("steps")

    def inferred(self, allocated_peak: Callable[[], int]) -> None:
        """A forward pass without gradients begins; ends a program that does nothing else, and nothing new."""
        self.evaluations += 1
        if self._optimizers or self.backwards or self.current is not None:
            return
        peak = allocated_peak()
        if peak > self._highest:
            self._highest, self._highest_at = peak, self.evaluations
        if self.evaluations >= max(STEADY_FORWARDS, 4 * self._highest_at):
            self._end("steady")

    def begins(self, length: Optional[int]) -> Pass:
        """A loader is about to give its first batch; `length` is how many it has."""
        self._pass = Pass(length, self)
        if len(self.passes) < MAX_PASSES:
            self.passes.append(self._pass)
        return self._pass

    def got(self, this: Pass, batch: Optional[int], shapes: Any) -> None:
        """The loader gave a batch of so many samples and such tensors."""
        self._pass = this
        self._since_batch = self.steps_so_far()
        this.batches += 1
        this.batch = batch
        if shapes not in this.shapes:
            this.shape_count += 1
            if len(this.shapes) < 16:
                this.shapes.append(shapes)

    def ends(self, this: Pass, cut: bool) -> None:
        """The pass is over, by itself or cut."""
        if this.ended:
            return
        this.end(cut)
        self._since_batch = self.steps_so_far()
        if this.kind == "training":
            self.training_passes += 1
            if self._since_training is None:
                self._since_training = self.steps_so_far()

    # --- what follows ---

    @property
    def batch(self) -> Optional[int]:
        """Samples in the batch that is worked on; None if none came from a loader."""
        this = self._pass
        return None if this is None or this.ended else this.batch

    @property
    def current(self) -> Optional[Pass]:
        """The pass that is going on."""
        return None if self._pass is None or self._pass.ended else self._pass

    @property
    def only_infers(self) -> bool:
        """Whether the program ran models, and showed no sign of training."""
        return not self._optimizers and not self.backwards and self.evaluations > 0

    def steps(self) -> int:
        """Optimizer steps so far, of the optimizer that took most."""
        return max(self._steps.values(), default=0)

    def steps_so_far(self) -> Dict[int, int]:
        """The steps of each optimizer, by its id."""
        return dict(self._steps)

    def wants_to_end(self, this: Pass, allocated: int) -> bool:
        """Whether the pass has shown enough; `allocated` is what is allocated before its next batch."""
        if len(this.allocated) <= PATIENCE:
            this.allocated.append(allocated)
        if this.kind == "training":
            if self.is_managed:
                return False
            stepped = self._took(this.steps_at_start)
            enough = self._enough(this.steps_at_start) if stepped else this.backwards >= PATIENCE
        else:
            enough = this.batches >= (self._wanted if this.kind == "evaluation" else PATIENCE)
        return enough and not self._may_grow(this)

    def _may_grow(self, this: Pass) -> bool:
        """Whether more batches must be seen to tell whether memory grows with each of them."""
        rises = [after - before for before, after in zip(this.allocated, this.allocated[1:])]  # noqa: B905
        if not rises or rises[-1] <= 0:
            return False
        if this.batches < GROWING_PASS:
            return True
        last = sorted(rises[-GROWING_BATCHES:])
        if last[0] > 0:
            this.grows_by = last[len(last) // 2]
        return False

    def _has_trained_enough(self) -> bool:
        this = self._pass
        if self.is_managed:
            return False
        if this is None or not this.can_be_cut:
            enough = self._enough({} if this is None else this.steps_at_start)
            return enough and self._is_past_its_loop()
        if self._since_training is not None and this.kind == "training":
            if not self._enough(self._since_training):
                return False
            return self.training_passes >= UNEVALUATED_PASSES - 1 or not self._waits_for_evaluation()
        if this.ended:
            return self._enough(self._since_batch)
        return max(self._took(self._since_batch), default=0) >= max(STEPS_ON_ONE_BATCH, 4 * self._wanted)

    @property
    def waits_for_a_loop(self) -> bool:
        """Whether steps like those before are walked only for what comes after them."""
        return bool(self._last_step) and not self.evaluations and self.steps() >= self._settled_at

    def _is_past_its_loop(self) -> bool:
        """Whether nothing new is to be expected of a loop without a loader; an evaluation may follow it."""
        if self.evaluations:
            return True
        if self._last_step is None:
            steps = self.steps()
            left = self._steps_left(steps) if self._evaluates_later() else 0
            self._settled_at = steps + SETTLING_STEPS
            self._last_step = steps + left if left and steps + left <= UNEVALUATED_STEPS else 0
        return self.steps() > self._last_step or not self._last_step

    def _waits_for_evaluation(self) -> bool:
        return self.evaluations == 0 and self._evaluates_later()

    def _took(self, since: Dict[int, int]) -> List[int]:
        taken = (count - since.get(optimizer, 0) for optimizer, count in self._steps.items())
        return [count for count in taken if count]

    def _enough(self, since: Dict[int, int]) -> bool:
        """Whether all optimizers took the steps wanted; one that never does is not waited for for ever."""
        taken = [self._steps.get(one, 0) - since.get(one, 0) for one in self._optimizers]
        return bool(taken) and (min(taken) >= self._wanted or max(taken) >= LATE_OPTIMIZER * self._wanted)

    def told(self) -> List[Dict[str, Any]]:
        """The passes, for the trace."""
        return [
            {
                "kind": this.kind,
                "batches": this.batches,
                "left_out": this.left_out(),
                "shapes": this.shape_count,
                "grows_by": this.grows_by,
            }
            for this in self.passes
            if this.batches
        ]


def describe(batch: Any) -> Tuple[Optional[int], Tuple[Any, ...]]:
    """Number of samples of a batch (None if unknown) and the shapes of the tensors in it."""
    shapes: List[Any] = []
    _collect(batch, shapes, 4)
    return _samples(batch, 4), tuple(shapes)


def _collect(thing: Any, shapes: List[Any], depth: int) -> None:
    shape = getattr(thing, "shape", None)
    if shape is not None and hasattr(thing, "dtype"):
        if len(shapes) < 256:
            shapes.append(tuple(shape))
    elif depth:
        for inner in _parts(thing):
            _collect(inner, shapes, depth - 1)


def _samples(thing: Any, depth: int) -> Optional[int]:
    """The first tensor's first dimension; of a list in the batch (images of many sizes) its length."""
    shape = getattr(thing, "shape", None)
    if shape is not None and hasattr(thing, "dtype"):
        return int(shape[0]) if len(shape) else None
    for inner in _parts(thing) if depth else ():
        if isinstance(inner, (list, tuple)):
            return len(inner)
        found = _samples(inner, depth - 1)
        if found is not None:
            return found
    return None


def _parts(thing: Any) -> List[Any]:
    if isinstance(thing, (list, tuple)):
        return list(thing)
    values = getattr(thing, "values", None)
    if callable(values) and hasattr(thing, "keys"):
        return list(values())
    attributes = getattr(thing, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []
