"""What loops of this folder have in common: the digits in equal parts, a network, a result to compare."""

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from decentnode.datasets.digits import Digits
from decentnode.mapping.rank_place import find_place

BATCH = 32
GRAPH = "ring"


@dataclass
class LoopOptions:
    """The options of one rank."""

    folder: Path
    """Where this rank saves its checkpoints."""
    steps: int
    resume_from: str
    """The name of a checkpoint in the folder; empty: start anew."""
    fail_at: int
    """The step before which the last rank fails; 0: it does not."""
    steps_per_round: int
    sharing: str
    rank: int = 0
    size: int = 1

    def own_part(self) -> TensorDataset:
        """The training images of this rank, as many as every other has."""
        images, labels = self._digits()[0]
        count = len(labels) // self.size
        own_rows = torch.arange(self.rank, self.size * count, self.size)
        return TensorDataset(images[own_rows], labels[own_rows])

    def test_part(self) -> TensorDataset:
        """All test images."""
        return TensorDataset(*self._digits()[1])

    def _digits(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        dataset = Digits().load(seed=0)
        train, test = dataset.train, dataset.test
        return train.batch(torch.arange(len(train))), test.batch(torch.arange(len(test)))

    def fails_at(self, step: int) -> None:
        """Raises an error on the last rank before its step `fail_at`."""
        if self.fail_at and step == self.fail_at and self.rank == self.size - 1:
            raise RuntimeError(f"rank {self.rank} fails before step {step}, as --fail-at asks for")

    def finish(self, model: nn.Module, steps: int) -> None:
        """Writes the hash of the model, with the number of steps, to a file of this rank."""
        parts = [value.detach().cpu().numpy().tobytes() for _, value in sorted(model.state_dict().items())]
        digest = hashlib.sha256(b"".join(parts)).hexdigest()
        (self.folder / "result.txt").write_text(f"{steps} {digest}\n")


def options_of(description: str) -> LoopOptions:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--resume-from", default="", metavar="NAME")
    parser.add_argument("--fail-at", type=int, default=0, metavar="STEP")
    parser.add_argument("--steps-per-round", type=int, default=2)
    parser.add_argument("--sharing", default="choco")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = find_place()
    if place is None:
        parser.error("no rank in the environment; start with `decentnode launch --nodes 4`, torchrun or srun")
    options = LoopOptions(**vars(arguments), rank=place.rank, size=place.size)
    options.folder /= f"rank{options.rank}"
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def network() -> nn.Module:
    """A network with a norm, whose running statistics are buffers, and with dropout, which draws numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10)
    )
