"""What a scheme remembers of a round's local steps: the model before them, and how many there were."""

from torch import Tensor

from decentnode.core.vector import ParameterLayout


class LocalSteps:
    """Notes each local step from inside it; a new round begins when the last one was asked about."""

    def __init__(self, layout: ParameterLayout) -> None:
        self._buffers = [entry for entry in layout.entries if entry.is_buffer]
        self.count = 0
        """The steps of this round so far."""
        self._start: Tensor | None = None

    def note(self, vector: Tensor) -> None:
        """To be called in every step before the model changes, with the model."""
        if not self.count:
            self._start = vector.clone() if self._start is None else self._start.copy_(vector)
        self.count += 1

    def end(self, vector: Tensor, mixed: Tensor) -> tuple[int, Tensor]:
        """The number of steps, and x - `mixed`, where x is the model before them: `vector` without any.

        Zero for buffers.
        """
        count, self.count = self.count, 0
        start = vector.clone() if not count or self._start is None else self._start
        moved = start.sub_(mixed)
        for entry in self._buffers:
            # No gradient moves them, so momentum has no business there: it could make a variance negative.
            entry.view(moved).zero_()
        return count, moved
