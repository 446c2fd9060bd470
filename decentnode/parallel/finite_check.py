"""The search of all ranks for the model that is not finite."""

import math
from collections.abc import Sequence

import torch

from decentnode.core.payload import dense_layout
from decentnode.core.vector import first_not_finite
from decentnode.parallel.buckets import BucketMemory
from decentnode.parallel.exchange_queue import ExchangeQueue

VERDICT = dense_layout(3, torch.float64)
"""A rank's report: block, element, and a value of its model that is not finite."""


def check_finite(buckets: Sequence[BucketMemory], exchanges: ExchangeQueue, living: Sequence[int]) -> None:
    """Raises RunFailed, with the name, on all ranks if the model of any live rank is not finite."""
    verdict = torch.zeros(3, dtype=torch.float64)  # the block, the element, and its value if it is not finite
    for number, block in enumerate(buckets):
        if defect := first_not_finite(block.values):
            verdict = torch.tensor([number, *defect], dtype=torch.float64)
            break
    verdict = verdict.to(exchanges.endpoint.device)
    inbox = exchanges.with_all(exchanges.to_others(verdict), None, VERDICT)
    verdicts = {j: payload["vector"].tolist() for j, payload in inbox.items()}
    verdicts[exchanges.rank] = verdict.tolist()
    inbox.release()
    for j in living:
        place, index, value = verdicts.get(j, (0.0, 0.0, 0.0))
        if not math.isfinite(value):
            name = buckets[int(place)].layout.name_at(int(index))
            raise exchanges.failure(ValueError(f"rank {j}: its model is not finite: {value} in {name}"))
