"""Which parameters decay."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn import Parameter

_NORMS = (
    nn.modules.batchnorm._NormBase,  # batch and instance norms
    nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
)  # fmt: skip


def decay_groups(
    source: nn.Module | Iterable[tuple[str, Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """Two groups for an optimizer: weights, which decay, and what does not: biases and parameters of norms.

    `source` is a module or its named parameters; without the module every vector counts as a bias or a norm.
    Frozen parameters and second names of one parameter are left out, and so is a group without parameters.
    """
    named = source.named_parameters() if isinstance(source, nn.Module) else source
    norms = _parameters_of_norms(source) if isinstance(source, nn.Module) else set()
    trained = {id(p): (name, p) for name, p in named if p.requires_grad}.values()
    groups: tuple[list[Parameter], list[Parameter]] = ([], [])
    for name, parameter in trained:
        stays = parameter.ndim < 2 or id(parameter) in norms or name.rpartition(".")[2] == "bias"
        groups[stays].append(parameter)
    return [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in zip(groups, (weight_decay, 0.0), strict=True)
        if parameters
    ]


def _parameters_of_norms(module: nn.Module) -> set[int]:
    norms = (part for part in module.modules() if isinstance(part, _NORMS))
    return {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
