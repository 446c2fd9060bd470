"""The state of a backward pass in progress, or of one that an error has ended."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class BackwardState:
    """The wrapper's state of the pass; not in the module itself, where setting an attribute is slow."""

    task: int | None = None
    """The pass at whose end the step is finished."""
    is_open: bool = False
    """Whether a forward or backward pass has started and not ended; True between passes: by an error."""
    fired: bool = False
    """Whether any gradient has arrived for a step that is not made yet."""
    finishing: bool = False
    missing: list[set[int]] = field(default_factory=list)
    """For each bucket the parameters whose gradients are missing."""
