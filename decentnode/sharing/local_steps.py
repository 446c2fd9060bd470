"""What a scheme remembers of a round's local steps: the model before them, and how many there were."""

import torch
from torch import Tensor


class LocalSteps:
    """Notes each local step from inside it; a new round begins when the last one was asked about."""

    def __init__(self) -> None:
        self._count = 0
        self._start: Tensor | None = None

    def note(self, vector: Tensor) -> None:
        """To be called in every step before the model changes, with the model."""
        if not self._count:
            self._start = vector.clone() if self._start is None else self._start.copy_(vector)
        self._count += 1

    def end(self, vector: Tensor, mixed: Tensor) -> tuple[int, Tensor]:
        """The number of steps, and x - `mixed`, where x is the model before them: `vector` without any."""
        count, self._count = self._count, 0
        if not count or self._start is None:
            return 0, vector - mixed
        return count, torch.sub(self._start, mixed, out=self._start)
