"""Low-rank adapters: a few trained numbers, added to the frozen weights of any network."""

import math
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.utils.parametrize import (
    is_parametrized,
    register_parametrization,
    type_before_parametrizations,
)

from decentnode.core.registry import guess
from decentnode.errors import BadInput
from decentnode.options import Positive, PositiveFloat

MOST_NAMES = 8
"""Names of layers in a message, at most."""


@dataclass(frozen=True)
class Adapters:
    """What is trained in addition to frozen weights (LoRA: Hu et al., ICLR 2022, section 4.1)."""

    rank: Positive
    """r, the rank of the change of each weight matrix."""
    targets: tuple[str, ...] = ("*",)
    """Names of the linear layers that get an adapter; * stands for any letters."""
    alpha: PositiveFloat | None = None
    """The change is scaled by alpha / rank; null: by 1."""
    freeze_a: bool = False
    """Whether A stays as drawn, so that the mean of B gives that of B A (FFA-LoRA: Sun et al., ICLR 2024)."""

    def attach(self, network: nn.Module) -> None:
        """Freezes the network's parameters, and gives linear layers adapters that begin without effect.

        A weight that several modules share gets none. Draws from torch's generator; raises BadInput.
        """
        uses = Counter(id(tensor) for _, tensor in network.named_parameters(remove_duplicate=False))
        layers = {
            name: part
            for name, part in network.named_modules()
            if isinstance(part, nn.Linear) and not is_parametrized(part) and uses[id(part.weight)] == 1
        }
        for index, pattern in enumerate(self.targets):
            if not any(fnmatchcase(name, pattern) for name in layers):
                known = ", ".join([*layers][:MOST_NAMES])
                hint = guess(pattern, layers) or (f" (known: {known})" if known else ": the model has none")
                raise BadInput.at(
                    f"model.adapters.targets[{index}]", f"no linear layer matches '{pattern}'{hint}"
                )
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        for name, layer in layers.items():
            if not any(fnmatchcase(name, pattern) for pattern in self.targets):
                continue
            if self.rank > min(layer.weight.shape):
                shape = " x ".join(map(str, layer.weight.shape))
                what = f"must be at most {min(layer.weight.shape)} for '{name}', whose weight is {shape}"
                raise BadInput.at("model.adapters.rank", f"{what}; or name other targets")
            register_parametrization(layer, "weight", LowRankAdapter(layer.weight, self))


class LowRankAdapter(nn.Module):
    """The weight of an adapted layer: W + (alpha / r) B A, with B zero at first (Hu et al., eq. 3)."""

    def __init__(self, weight: Tensor, adapters: Adapters) -> None:
        super().__init__()
        r, (outputs, inputs) = adapters.rank, weight.shape
        self.scale = 1.0 if adapters.alpha is None else adapters.alpha / r
        self.A = nn.Parameter(weight.new_empty(r, inputs), requires_grad=not adapters.freeze_a)
        self.B = nn.Parameter(weight.new_zeros(outputs, r))
        # As in the authors' loralib, which draws A as torch draws the weight of a linear layer.
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """The adapted weight, of the shape of `weight`."""
        return weight + self.scale * (self.B @ self.A)


def merge(network: nn.Module) -> None:
    """Adds adapters, where there are some, to their weights and removes them."""
    for part in filter(_has_adapter, list(network.modules())):
        weight: Tensor = part.weight.detach().clone()  # type: ignore[operator]
        # `remove_parametrizations` would take the property from the class, which copies of a network share.
        part.__class__ = type_before_parametrizations(part)
        del part.parametrizations
        part.weight = nn.Parameter(weight)


def _has_adapter(part: nn.Module) -> bool:
    if not is_parametrized(part, "weight"):
        return False
    first: nn.Module = part.parametrizations["weight"][0]  # type: ignore[index, assignment]
    return isinstance(first, LowRankAdapter)
