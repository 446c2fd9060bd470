"""A network whose steps take their time without a processor, as they do where a GPU computes."""

import time

import torch
from torch import nn

SECONDS = 0.2


class Waiting(nn.Module):
    """Linear, a million parameters; each forward pass in training stands still for a while."""

    def __init__(self, features: int = 64, hidden: int = 13_500, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.Linear(hidden, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(SECONDS)
        scores: torch.Tensor = self.layers(x.flatten(1))
        return scores
