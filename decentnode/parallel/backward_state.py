"""What is known of a backward pass while it is under way, and of one that an error has ended."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class BackwardState:
    """The notes of the wrapper; not in the module itself, which takes its time to set an attribute."""

    task: int | None = None
    """The pass at whose end the step is finished."""
    is_open: bool = False
    """Whether a forward or backward pass has begun and not ended: between passes, that an error ended it."""
    fired: bool = False
    """Whether any gradient has come for a step that is not made."""
    finishing: bool = False
    missing: list[set[int]] = field(default_factory=list)
    """For each bucket the parameters whose gradients have not come."""
