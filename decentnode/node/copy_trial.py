"""Whether the copy of a network that a node trains is the node's own, and what of it no step changes.

A function, a class or a global variable may keep the network that it was made for. A copy then computes with
that one, and its own parameters stay as they were.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from decentnode.core.rng import seed_generators
from decentnode.core.text import counted
from decentnode.datasets.base import Batch
from decentnode.errors import BadInput
from decentnode.models.module_copies import copied
from decentnode.models.module_state import equal
from decentnode.training.evaluation import evaluation_mode
from decentnode.training.objective import Objective
from decentnode.training.training import Training

ADVICE = "let functions and classes reach parts of the network through self or an argument"
NONE_LEFT = "so nodes would train none of their own"


class CopyTrial:
    """What the steps of a copy train; the original must stay as it is."""

    def __init__(self, network: nn.Module, training: Training, batch: Batch) -> None:
        """`network`: the original; `training`: of a copy that is used for nothing else.

        Raises BadInput if the loss of the copy depends on parameters of the original.
        """
        self.network = network
        self._name = type(network).__name__
        self._settings, self._layout = training.settings, training.vector.layout
        self._batch = batch
        self._first = {name: tensor.detach().clone() for name, tensor in _tensors(network).items()}
        self._start = training.vector.values.clone()
        entries = [entry for entry in self._layout.entries if not entry.is_buffer and entry.shape.numel()]
        self._trained = {entry.name: entry for entry in entries}
        for name, entry in self._trained.items():
            if not torch.equal(entry.view(self._start), self._first[name]):
                raise BadInput.at(
                    "model",
                    f"a copy of {self._name} starts with other values of '{name}', but all nodes start from "
                    "one model; let __deepcopy__ or __reduce__ keep them",
                )
        self._with_gradient = set[str]()
        self._used, self._hidden = self._reached(training.objective)

    def after_step(self, training: Training) -> None:
        """Notes which parameters the last step of a copy had a gradient for."""
        gradient = training.vector.gradient
        self._with_gradient |= {name for name, entry in self._trained.items() if entry.view(gradient).any()}

    def _reached(self, objective: Objective) -> tuple[set[str], list[Tensor]]:
        """The parameters that the loss of a copy depends on, and tensors that are no parameters.

        Raises BadInput for parameters of the original. Here those are hidden whose graph the backward pass
        computes again.
        """
        leaves = leaves_of(self._loss(objective))
        again = {id(leaf) for leaf in leaves_of(self._loss(objective))}
        originals = {id(parameter): name for name, parameter in self.network.named_parameters()}
        if foreign := [originals[id(leaf)] for leaf in leaves if id(leaf) in originals]:
            raise BadInput.at(
                "model",
                f"a copy of {self._name} computes with '{foreign[0]}' of the original, {NONE_LEFT}: "
                f"something keeps the original; {ADVICE}",
            )
        names = {id(parameter): name for name, parameter in objective.module.named_parameters()}
        # What a forward pass makes itself is another tensor in the next one.
        known = names.keys() | set(map(id, self._batch.fields))
        hidden = [leaf for leaf in leaves if id(leaf) in again - known]
        return {names[id(leaf)] for leaf in leaves if id(leaf) in names}, hidden

    def _loss(self, objective: Objective) -> Tensor:
        objective.module.train()
        seed_generators(0, on_cpu=True)
        return objective(self._batch)[1]

    def notices(self, training: Training, steps: int) -> Iterator[str]:
        """Yields lines about what so many steps did not train; raises BadInput where they used the original.

        Runs last: it changes the original for a while.
        """
        self._check_original()
        unused = [name for name in self._trained if name not in self._used | self._with_gradient]
        self._check_unused(unused)
        self._check_poisoned(training.module)
        values = training.vector.values
        moved = {
            name for name, entry in self._trained.items()
            if not torch.equal(entry.view(values), entry.view(self._start))
        }  # fmt: skip
        still = [n for n in self._trained if n in self._used and n not in self._with_gradient]
        fixed = [n for n in self._trained if n in self._with_gradient and n not in moved] if moved else []
        if unused:
            yield f"model: the loss of {self._name} does not use {listed(unused)}, which it does not train"
        if still:
            yield f"model: the gradient of {listed(still)} was 0 in all {steps} steps of a trial"
        if fixed:
            yield f"model: {steps} steps of a trial did not change {listed(fixed)}, in spite of a gradient"
        if self._hidden:
            what = f"a tensor of shape {tuple(self._hidden[0].shape)} that is none of its parameters"
            yield (
                f"model: the loss of {self._name} depends on {what}, so no step changes it; lists of modules "
                "belong in nn.ModuleList, tensors in nn.Parameter"
            )

    def _check_original(self) -> None:
        for name, tensor in _tensors(self.network).items():
            if (
                name not in self._first
                or not equal(tensor.detach(), self._first[name])
                or tensor.grad is not None
            ):
                raise BadInput.at(
                    "model",
                    f"steps of a copy of {self._name} reach '{name}' of the original: something keeps the "
                    f"original; {ADVICE}",
                )

    def _check_unused(self, unused: Sequence[str]) -> None:
        """Raises BadInput if something else is used in place of a parameter."""
        if not unused:
            return
        objective = self._settings.objective(self.network, self._layout.channels_last)
        reached = {id(leaf) for leaf in leaves_of(self._loss(objective))}
        # What the original has in a list, say, is copied with it.
        shared = {tuple(tensor.shape) for tensor in self._hidden if id(tensor) in reached}
        for name in unused:
            if self._trained[name].shape in shared:
                raise BadInput.at(
                    "model",
                    f"a copy of {self._name} computes with another tensor in place of '{name}', {NONE_LEFT}: "
                    f"something keeps another network; {ADVICE}",
                )
        for name, parameter in self.network.named_parameters():
            if name in unused and id(parameter) in reached:
                raise BadInput.at(
                    "model",
                    f"{self._name} uses '{name}', but a copy of it does not: what the constructor computed "
                    "from it is fixed in a copy; compute it in forward",
                )

    def _check_poisoned(self, module: nn.Module) -> None:
        """Raises BadInput if numbers of the original that are not finite reach the output of a copy."""
        # What no step changes may be shared.
        own = _tensors(module)
        foreign = {
            name: tensor
            for name, tensor in _tensors(self.network).items()
            if (tensor.is_floating_point() or tensor.is_complex())
            and (tensor.requires_grad or not equal(own.get(name), tensor))
        }
        if not self._is_finite({}) or self._is_finite(foreign):
            return
        alone = (name for name, tensor in foreign.items() if not self._is_finite({name: tensor}))
        name = next(alone, next(iter(foreign)))
        raise BadInput.at(
            "model",
            f"a copy of {self._name} computes with '{name}' of the original, which no node trains: something "
            f"keeps the original; {ADVICE}",
        )

    def _is_finite(self, poisoned: Mapping[str, Tensor]) -> bool:
        """Whether the losses of a fresh copy are finite while these tensors of the original are not."""
        tried = copied(self.network)
        objective = self._settings.objective(tried, self._layout.channels_last)
        with torch.no_grad():
            for tensor in poisoned.values():
                tensor.fill_(torch.nan)
            try:
                losses = [self._loss(objective)]
                with evaluation_mode(tried):
                    losses.append(objective(self._batch)[1])
            except Exception:  # the user's own code may check its values
                return not poisoned
            finally:
                for name, tensor in poisoned.items():
                    tensor.copy_(self._first[name])
        return all(bool(loss.isfinite()) for loss in losses)


def leaves_of(loss: Tensor) -> list[Tensor]:
    """The tensors whose gradients a backward pass from the loss computes, each once."""
    leaves, pending, seen = list[Tensor](), [loss.grad_fn], set[object]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)  # type: ignore[attr-defined]
        pending += [before for before, _ in node.next_functions]
    return leaves


def listed(names: Sequence[str]) -> str:
    """The first of some parameters, and how many others there are."""
    more = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
    return f"'{names[0]}'{more}"


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}
