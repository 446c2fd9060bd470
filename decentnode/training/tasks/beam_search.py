"""The texts that a network scores highest, found step by step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BeamSearch:
    """Keeps the best `beams` beginnings of each text (Wu et al., 2016, section 7, without coverage).

    The result maximizes log P(Y) / lp(Y) with lp(Y) = ((5 + |Y|) / 6)^alpha among the finished texts that
    were found; |Y| counts `end`. A search ends with `beams` of these, or where none can become better. With
    one beam it is greedy.
    """

    beams: int
    alpha: float
    end: int
    """The id that finishes a text."""

    def __call__(
        self, step: Callable[[Tensor, Tensor], Tensor], begin: Tensor, most: Tensor, beat: Callable[[], None]
    ) -> list[list[int]]:
        """For each text its ids after `begin`, shape (texts,), with the last `end` if there is one.

        `step(rows, ids)` gives the scores of the next ids, shape (n, vocabulary), for beginnings `ids`, shape
        (n, length), of the texts `rows`; scores may be on another device. A text has at most `most` ids,
        shape (texts,). `beat` is called after each step.
        """
        texts = len(begin)
        ids = begin[:, None, None].expand(texts, self.beams, 1)
        # At first all beams of a text are alike; one of them counts.
        total = torch.full((texts, self.beams), -torch.inf, dtype=torch.float64)
        total[:, 0] = 0
        ended_texts = [(-torch.inf, list[int]())] * texts
        rows, count = torch.arange(texts), torch.zeros(texts, dtype=torch.int64)
        while len(rows):
            length = ids.shape[2]
            scores = step(rows.repeat_interleave(self.beams), ids.flatten(0, 1))
            total, ids = self._extended(scores.log_softmax(1), total, ids)
            is_finished = (ids[..., -1] == self.end) | (length >= most[rows])[:, None]
            ended = total.where(is_finished, -torch.inf)[:, : self.beams]
            self._note(ended_texts, rows, ended / self._penalty(length), ids=ids)
            count[rows] += ended.isfinite().sum(1)
            total = total.where(~is_finished, -torch.inf)
            # The highest that any beginning can still reach, because log P only falls.
            highest = total.amax(1) / self._penalty(most[rows])
            best = torch.tensor([ended_texts[row][0] for row in rows.tolist()])
            goes_on = (highest > best) & (count[rows] < self.beams)
            rows, ids, total = rows[goes_on], ids[goes_on], total[goes_on]
            ids, total = self._narrowed(ids, total)
            beat()
        return [text for _, text in ended_texts]

    def _extended(self, scores: Tensor, total: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns twice as many beams as usual: enough unfinished ones remain even if all others finish."""
        # The best of a text are among the best of its beams, and so few are quick to move.
        best = scores.topk(min(2 * self.beams, scores.shape[1]), 1)
        values, next_ids = (each.to(total.device).view(*total.shape, -1) for each in best)
        every = (total[..., None] + values).flatten(1)
        chosen = every.topk(min(2 * self.beams, every.shape[1]), 1)
        beam = chosen.indices // values.shape[2]
        before = ids.gather(1, beam[..., None].expand(-1, -1, ids.shape[2]))
        last = next_ids.flatten(1).gather(1, chosen.indices)
        return chosen.values, torch.cat([before, last[..., None]], 2)

    def _narrowed(self, ids: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        best = total.topk(min(self.beams, total.shape[1]), 1)
        kept = ids.gather(1, best.indices[..., None].expand(-1, -1, ids.shape[2]))
        missing = self.beams - kept.shape[1]
        if missing > 0:
            kept = torch.cat([kept, kept[:, :1].expand(-1, missing, -1)], 1)
        values = torch.nn.functional.pad(best.values, (0, max(0, missing)), value=-torch.inf)
        return kept, values

    def _note(self, kept: list[tuple[float, list[int]]], rows: Tensor, scores: Tensor, ids: Tensor) -> None:
        """Keeps the best finished text of each row."""
        best = scores.max(1)
        for place, (row, score) in enumerate(zip(rows.tolist(), best.values.tolist(), strict=True)):
            if score > kept[row][0]:
                kept[row] = (score, ids[place, best.indices[place], 1:].tolist())

    def _penalty(self, length: int | Tensor) -> float | Tensor:
        penalty: float | Tensor = ((5 + length) / 6) ** self.alpha
        return penalty
