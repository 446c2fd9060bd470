"""Separates the parameters that decay from the others."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn import Parameter

_NORMS = (
    nn.modules.batchnorm._NormBase,  # batch and instance norms
    nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
)  # fmt: skip


def decay_groups(
    parameters: nn.Module | Iterable[tuple[str, Parameter]],
    weight_decay: float,
    module: nn.Module | None = None,
) -> list[dict[str, Any]]:
    """Groups for an optimizer: weights, which decay, and the others: biases, and parameters of norms.

    `parameters` are a module's, or some with their names. In the second case `module` shows which of them
    belong to a norm; without it every vector counts as such. Frozen parameters, second names of one parameter
    and empty groups are left out.
    """
    module = parameters if isinstance(parameters, nn.Module) else module
    named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
    parts = module.modules() if module is not None else ()
    norms = {id(p) for part in parts if isinstance(part, _NORMS) for p in part.parameters(False)}
    groups: tuple[list[Parameter], list[Parameter]] = ([], [])
    for name, parameter in {id(p): (name, p) for name, p in named if p.requires_grad}.values():
        stays = parameter.ndim < 2 or id(parameter) in norms or name.rpartition(".")[2] == "bias"
        groups[stays].append(parameter)
    return [
        {"params": group, "weight_decay": decay}
        for group, decay in zip(groups, (weight_decay, 0.0), strict=True)
        if group
    ]
