"""Low-rank adapters: a few trained numbers, added to the frozen weights of any network."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

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
    modules_to_save: tuple[str, ...] = ()
    """Names of modules that are trained as a whole, such as a new head; * stands for any letters."""

    def attach(self, network: nn.Module) -> None:
        """Freezes the network's parameters, and gives linear layers adapters that begin without effect.

        Modules to save train all their parameters instead. A weight that several modules share gets no
        adapter. Draws from torch's generator; raises BadInput.
        """
        uses = Counter(id(tensor) for _, tensor in network.named_parameters(remove_duplicate=False))
        modules = {name: part for name, part in network.named_modules() if name and [*part.parameters()]}
        names = _matching("modules_to_save", self.modules_to_save, modules, "module")
        trained = {id(parameter) for name in names for parameter in modules[name].parameters()}
        layers = {
            name: part
            for name, part in network.named_modules()
            if isinstance(part, nn.Linear)
            and not is_parametrized(part)
            and uses[id(part.weight)] == 1
            and id(part.weight) not in trained
        }
        targets = _matching("targets", self.targets, layers, f"{'frozen ' * bool(trained)}linear layer")
        for parameter in network.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        for name in targets:
            layer = layers[name]
            if self.rank > min(layer.weight.shape):
                shape = " x ".join(map(str, layer.weight.shape))
                what = f"must be at most {min(layer.weight.shape)} for '{name}', whose weight is {shape}"
                raise BadInput.at("model.adapters.rank", f"{what}; or name other targets")
            register_parametrization(layer, "weight", LowRankAdapter(layer.weight, self))


def _matching(option: str, patterns: Sequence[str], names: Collection[str], kind: str) -> list[str]:
    """Returns the names that match one of the patterns; raises BadInput for a pattern that none matches."""
    for index, pattern in enumerate(patterns):
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join([*names][:MOST_NAMES])
            hint = guess(pattern, names) or (f" (known: {known})" if known else ": the model has none")
            raise BadInput.at(f"model.adapters.{option}[{index}]", f"no {kind} matches '{pattern}'{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


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


def merge(network: nn.Module) -> nn.Module:
    """Adds adapters, where there are some, to their weights and removes them; returns the network without.

    A model of peft does it itself, and returns the one that it was made from.
    """
    if merge_and_unload := getattr(network, "merge_and_unload", None):
        return cast(nn.Module, merge_and_unload())
    for part in filter(_has_adapter, list(network.modules())):
        weight: Tensor = part.weight.detach().clone()  # type: ignore[operator]
        # `remove_parametrizations` would take the property from the class, which copies of a network share.
        part.__class__ = type_before_parametrizations(part)
        del part.parametrizations
        part.weight = nn.Parameter(weight)
    return network


def _has_adapter(part: nn.Module) -> bool:
    if not is_parametrized(part, "weight"):
        return False
    first: nn.Module = part.parametrizations["weight"][0]  # type: ignore[index, assignment]
    return isinstance(first, LowRankAdapter)
