"""The model plug-in: options, and a network built from them for the shape of the samples."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isfunction, signature
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from decentnode.core.rng import key
from decentnode.errors import BadInput, is_out_of_memory
from decentnode.models.pretrained import load_weights

MOST_CHANGE = 0.1
"""Of scores by padding, in standard deviations; half precision rounds to less."""
ONE_VALUE = "more than 1 value per channel"
"""Part of the error of torch's batch norm for a batch that it cannot normalize."""


@dataclass(kw_only=True)
class Model(ABC):
    """A family of networks; the fields of a subclass are its YAML options."""

    pretrained: Path | None = None
    """A file with the tensors to start from: .safetensors, or a state_dict written by torch.save."""

    @property
    def uses_compiler(self) -> bool:
        """Whether the network imports torch's compiler when it trains, as torch.utils.checkpoint does."""
        return False

    @abstractmethod
    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A network from samples of `shape` (without the batch) to one score per class."""


@dataclass
class NetworkOf(Model):
    """A network from outside this package, built by its own constructor or by a function."""

    network: Callable[..., nn.Module]
    options: Mapping[str, Any]

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        name = self.network.__name__
        try:
            built = self.network(**self.options)
        except Exception as error:  # the user's own code may raise anything
            raise _of_user(error, f"model {name} cannot be built") from error
        if not isinstance(built, nn.Module):
            raise BadInput(f"model {name} gives {type(built).__name__}, not a torch.nn.Module")
        return built


def model_of(cls: Callable[..., Any], options: Mapping[str, Any]) -> Model:
    """The plug-in for `module:Class`: a Model with these options, or any nn.Module class.

    Also a function that returns an nn.Module. `pretrained` is an option of all, unless their own arguments
    include one of that name.
    """
    if isinstance(cls, type) and issubclass(cls, Model):
        return cls(**options)
    if isfunction(cls) or (isinstance(cls, type) and issubclass(cls, nn.Module)):
        own = dict(options)
        path = None if "pretrained" in signature(cls).parameters else own.pop("pretrained", None)
        return NetworkOf(cls, own, pretrained=path)
    raise BadInput(f"model {cls.__name__} is neither a decentnode Model nor a torch.nn.Module")


def initial_model(
    model: Model, shape: tuple[int, ...], num_classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """The network that every node starts from: the same for the same seed in any state of torch.

    It is made in float32 and then converted, so that it is the same network in each dtype. Raises BadInput
    where the file of `pretrained` does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "model"))
        network = model.build(shape, num_classes)
    if model.pretrained is not None:
        load_weights(network, model.pretrained)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dtype == torch.float32:
            tensor.data = tensor.data.to(dtype)
    return network


def check_scores(
    network: nn.Module, zeros: tuple[torch.Tensor, ...], num_classes: int, labels: tuple[int, ...] = ()
) -> None:
    """Raises BadInput unless the network turns samples into `num_classes` scores for each label.

    `zeros` is a batch of samples of zeros; `labels` is the shape of the labels of one sample. It computes, so
    a process that will be forked must have set one torch thread before.
    """
    name, count = type(network).__name__, len(zeros[0])
    try:
        with torch.no_grad():
            scores = copy.deepcopy(network).eval()(*zeros)
    except Exception as error:  # the user's own class may raise anything
        shapes = " and ".join(
            f"{'samples' if field.is_floating_point() else 'ids'} of shape {tuple(field.shape[1:])}"
            for field in zeros
        )
        raise _of_user(error, f"model {name} does not take {shapes}") from error
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    wanted = (count, num_classes, *labels)
    if given != wanted:
        raise BadInput(f"model {name} gives {given} for {count} samples; it must give {wanted}")


def check_ids(network: nn.Module, largest: tuple[torch.Tensor, ...]) -> None:
    """Raises BadInput unless the network takes these ids, the largest of the samples, if there are any.

    Computes, like `check_scores`.
    """
    ids = [field for field in largest if not field.is_floating_point()]
    if not ids:
        return
    try:
        with torch.no_grad():
            copy.deepcopy(network).eval()(*largest)
    except Exception as error:  # the user's own class may raise anything
        most = max(int(field.max()) for field in ids)
        what = f"model {type(network).__name__} does not take the ids of the samples, which go up to {most}"
        raise _of_user(error, what) from error


def check_padding(
    network: nn.Module, alone: tuple[torch.Tensor, ...], padded: tuple[torch.Tensor, ...]
) -> None:
    """Raises BadInput if padding changes the scores of a sample, `alone` and first in the batch `padded`.

    Only the scores of its own positions are compared. Computes, like `check_scores`.
    """
    with torch.no_grad():
        judged = copy.deepcopy(network).eval()
        scores, others = judged(*alone)[0], judged(*padded)[0]
    others = others[tuple(map(slice, scores.shape))]
    if (scores - others).abs().max() > MOST_CHANGE * scores.std():
        raise BadInput(
            f"model {type(network).__name__}: the scores of a sample change with the padding after it; it "
            "must leave padding out (as transformer with padding: 0)"
        )


def least_batch(network: nn.Module, fields: tuple[torch.Tensor, ...]) -> int:
    """The fewest samples that the network can be trained on at once; `fields` is a batch of one.

    2 where batch norm would have one value per channel. Computes, like `check_scores`.
    """
    if not any(isinstance(part, _BatchNorm) for part in network.modules()):
        return 1
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(network).train()(*fields)
    except Exception as error:  # training reports other defects of a user's own class
        return 2 if ONE_VALUE in str(error) else 1
    return 1


def _of_user(error: Exception, what: str) -> Exception:
    """The exception to raise for an error in code that may be a user's."""
    if isinstance(error, BadInput) or is_out_of_memory(error):
        return error
    reason = (str(error) or "no reason given").splitlines()[0]
    expected = isinstance(error, RuntimeError | ValueError | TypeError)
    return BadInput(f"{what}: {reason if expected else f'{type(error).__name__}: {reason}'}")


def image_shape(shape: tuple[int, ...], model: str, smallest: int) -> tuple[int, int, int]:
    """The shape, checked to be (channels, height, width) of at least `smallest` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise BadInput(
            f"model {model} takes images of shape (channels, height, width), at least "
            f"{smallest} x {smallest}; the dataset gives {shape}"
        )
    return shape[0], shape[1], shape[2]


def ids_shape(shape: tuple[int, ...], model: str) -> int:
    """The length of a text, from a shape that is checked to be (length,)."""
    if len(shape) != 1:
        raise BadInput(f"model {model} takes ids of shape (length,); the dataset gives {shape}")
    return shape[0]


def perceptron(shape: tuple[int, ...], widths: tuple[int, ...]) -> nn.Sequential:
    """Flattens samples and applies linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = prod(shape)
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers[:-1])
