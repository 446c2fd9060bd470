"""The losses of several nodes by grouped products: each layer computes all nodes in one call of torch."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from decentnode.training.objective import Objective
from decentnode.training.tasks.classification import Classification
from decentnode.training.tasks.regression import Regression

ELEMENTWISE = (nn.ELU, nn.GELU, nn.Identity, nn.LeakyReLU, nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh)
CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss)
LOSSES = (*CLASS_LOSSES, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss)
"""Losses whose mean over a minibatch is that of the losses of its samples."""
Layer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""Returns outputs for parameters, by name, and inputs; all have a first dimension for the nodes."""


class GroupedLosses:
    """Computes the losses of minibatches of several nodes, layer by layer."""

    def __init__(self, layers: list[Layer], objective: Objective) -> None:
        self._layers = layers
        self._objective = objective
        self._are_classes = isinstance(objective.loss, CLASS_LOSSES)

    def __call__(self, parameters: Mapping[str, Tensor], labels: Tensor, x: Tensor) -> Tensor:
        """Returns the losses, shape (nodes,), for inputs and labels of shape (nodes, batch, ...)."""
        if len(x) == 1:
            # Torch multiplies a single pair of matrices in another way, which may round otherwise.
            two = {name: tensor.expand(2, *tensor.shape[1:]) for name, tensor in parameters.items()}
            return self(two, labels.expand(2, *labels.shape[1:]), x.expand(2, *x.shape[1:]))[:1]
        for layer in self._layers:
            x = layer(parameters, x)
        if self._are_classes and x.dim() == 3:
            # As if each node had one sample with many labels: the scores lie in memory like this.
            return self._objective.each(x.mT, labels)
        return self._objective.each(x.flatten(0, 1), labels.flatten(0, 1)).view(len(x), -1).mean(1)


def grouped_losses(objective: Objective, names: Mapping[int, str]) -> GroupedLosses | None:
    """Returns the losses by grouped products; None: network, task or loss are others than those known here.

    Each sample must have one term in the mean loss. `names`: those of the network's parameters, by `id`.
    """
    is_known = type(objective.loss) in LOSSES and type(objective.task) in (Classification, Regression)
    if not is_known or objective.reduction != "mean":
        return None
    layers = layers_of(objective.module, names)
    return None if layers is None else GroupedLosses(layers, objective)


def layers_of(network: nn.Module, names: Mapping[int, str]) -> list[Layer] | None:
    """Returns the layers of a sequence of linear and elementwise ones; None: others are among them.

    Convolutions are none of them: torch's rule for vmap computes them in the same groups.
    """
    hooks = (
        network._forward_hooks, network._forward_pre_hooks,
        network._backward_hooks, network._backward_pre_hooks,
    )  # fmt: skip
    if any(hooks) or "forward" in vars(network):
        return None
    if type(network) is nn.Sequential:
        layers: list[Layer] = []
        for part in network:
            if (more := layers_of(part, names)) is None:
                return None
            layers += more
        return layers
    if type(network) is nn.Flatten and (network.start_dim, network.end_dim) == (1, -1):
        return [lambda _, x: x.flatten(2)]
    if type(network) in ELEMENTWISE:
        return [lambda _, x: network(x)]
    if type(network) is nn.Linear:
        own = {name: names.get(id(parameter), "") for name, parameter in network.named_parameters()}
        if "" in own.values():
            return None
        weight, bias = own["weight"], own.get("bias", "")
        return [lambda parameters, x: linear(x, parameters[weight], parameters.get(bias))]
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Y_i^T = W_i X_i^T + b_i for each node i: the gradient of W_i then lies in memory as W_i does.

    Shapes: x (nodes, batch, ..., in), weight (nodes, out, in), bias (nodes, out).
    """
    columns = x.flatten(1, -2).mT
    y = torch.bmm(weight, columns) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, columns)
    return y.mT.view(*x.shape[:-1], -1)
