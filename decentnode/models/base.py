"""The model plug-in: options, and a network built from them for the shape of the samples."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction, signature
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from decentnode.core.rng import seeded
from decentnode.core.vector import COMPLEX_OF
from decentnode.errors import BadInput, is_out_of_memory
from decentnode.models.adapters import Adapters
from decentnode.models.module_copies import copied
from decentnode.models.module_state import all_buffers, check_extra_state, set_buffer
from decentnode.models.named_arguments import pass_by_name
from decentnode.models.outputs import main_output
from decentnode.models.pretrained import load_weights

MOST_CHANGE = 0.1
"""How much padding may change scores, in standard deviations; half precision rounds to less."""
ONE_VALUE = "more than 1 value per channel"
"""A part of the error of torch's batch norm for a batch that it cannot normalize."""


@dataclass(kw_only=True)
class Model(ABC):
    """A family of networks; the fields of a subclass are its YAML options."""

    pretrained: Path | None = None
    """A file with the tensors to start from: .safetensors, or a state_dict written by torch.save."""
    adapters: Adapters | None = None
    """What is trained instead of all parameters; null: those."""

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
            raise _of_user(error, f"{name} cannot be built") from error
        if not isinstance(built, nn.Module):
            raise BadInput.at("model", f"{name} gives {type(built).__name__}, not a torch.nn.Module")
        return built


def model_of(cls: Callable[..., Any], options: Mapping[str, Any]) -> Model:
    """The plug-in for `module:Class`: a Model with these options, or any nn.Module class.

    Also a function that returns an nn.Module. `pretrained` and `adapters` are options of all, unless their
    own arguments include one of that name.
    """
    if isinstance(cls, type) and issubclass(cls, Model):
        return cls(**options)
    if isfunction(cls) or (isinstance(cls, type) and issubclass(cls, nn.Module)):
        own, of_base = signature(cls).parameters, ("pretrained", "adapters")
        ours = {name: options[name] for name in of_base if name in options and name not in own}
        return NetworkOf(cls, {name: options[name] for name in options if name not in ours}, **ours)
    raise BadInput.at("model", f"{cls.__name__} is neither a decentnode Model nor a torch.nn.Module")


def initial_model(
    model: Model, shape: tuple[int, ...], num_classes: int, seed: int, dtype: torch.dtype = torch.float32,
    zeros: tuple[Tensor, ...] | None = None, arguments: Sequence[str] = (),
) -> nn.Module:  # fmt: skip
    """The network that every node starts from: the same for the same seed in any state of the generators.

    It is made in float32 and then converted, so that it is the same network in each dtype. `zeros`: samples,
    for the shapes of lazy modules; `arguments`: the names of their inputs, if they have some. Raises
    BadInput where the network cannot be trained here, or the file of `pretrained` does not fit.
    """
    with seeded(seed, "model"):
        network = model.build(shape, num_classes)
        if "torch._inductor.config" in sys.modules:
            # Where it is compiled, each process would start others that compile.
            torch._inductor.config.compile_threads = 1
        pass_by_name(network, arguments)
        give_shapes(network, zeros)
    scripted = [path for path, part in network.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        raise BadInput.at(
            "model",
            f"{f'{scripted[0]!r}' if scripted[0] else 'the network'} is a module of TorchScript, whose "
            "parameters cannot be kept in one vector; use the module that it was made from",
        )
    if model.pretrained is not None:
        load_weights(network, model.pretrained)
    if model.adapters is not None:
        with seeded(seed, "adapters"):
            model.adapters.attach(network)
    wanted = {torch.float32: dtype, torch.complex64: COMPLEX_OF.get(dtype, torch.complex64)}
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dtype in wanted and tensor.layout is torch.strided:
            tensor.data = tensor.data.to(wanted[tensor.dtype])
    for name, buffer, _ in [*all_buffers(network)]:
        # The type of a sparse tensor is fixed, so another one replaces it.
        if buffer is not None and buffer.layout is not torch.strided and buffer.dtype in wanted:
            set_buffer(network, name, buffer.to(wanted[buffer.dtype]), is_shared=True)
    check_extra_state(network)
    return network


def give_shapes(network: nn.Module, zeros: tuple[Tensor, ...] | None) -> None:
    """Runs lazy modules once, which gives their tensors a shape; raises BadInput for those that have none."""
    if not _without_shape(network):
        return
    if zeros is not None:
        modes = {part: part.training for part in network.modules()}
        fields = tuple(field.float() if field.is_floating_point() else field for field in zeros)
        try:
            with torch.no_grad():
                network.eval()(*fields)
        except Exception as error:  # the user's own class may raise anything
            raise _of_user(error, f"{type(network).__name__} does not take {_described(zeros)}") from error
        for part, mode in modes.items():
            part.training = mode
    if names := _without_shape(network):
        raise BadInput.at(
            "model",
            f"'{names[0]}' has no shape after a batch of samples: the network does not use it; remove "
            "it, or give its module a size",
        )


def _without_shape(network: nn.Module) -> list[str]:
    tensors = (*network.named_parameters(), *network.named_buffers())
    return [name for name, tensor in tensors if is_lazy(tensor)]


def _described(fields: tuple[Tensor, ...]) -> str:
    """The kinds and shapes of samples, as text."""
    return " and ".join(
        f"{'samples' if field.is_floating_point() else 'ids'} of shape {tuple(field.shape[1:])}"
        for field in fields
    )


def check_scores(
    network: nn.Module, zeros: tuple[torch.Tensor, ...], num_classes: int, labels: tuple[int, ...] = (),
    others: Sequence[tuple[int, ...]] = (),
) -> None:  # fmt: skip
    """Raises BadInput unless the network turns samples into `num_classes` scores for each label.

    `zeros` is a batch of samples of zeros; `labels` is the shape of the labels of one sample; `others`:
    further shapes that its scores may have. It computes, so a process that will be forked must have set one
    torch thread before.
    """
    name, count = type(network).__name__, len(zeros[0])
    tried = copied(network).eval()
    try:
        with torch.no_grad():
            scores = main_output(tried(*zeros))
    except Exception as error:  # the user's own class may raise anything
        raise _of_user(error, f"{name} does not take {_described(zeros)}") from error
    shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    wanted = (count, num_classes, *labels)
    if shape != wanted and shape not in [(count, *other) for other in others]:
        hint = ""
        if num_classes == 2 and shape in ((count, *labels), (count, 1, *labels)):
            several = len(labels) == 1 and shape == (count, *labels)
            hint = f"; one for each label is task: {'multi_label' if several else 'binary'}"
        raise BadInput.at("model", f"{name} gives {shape} for {count} samples; it must give {wanted}{hint}")


def check_ids(network: nn.Module, largest: tuple[torch.Tensor, ...]) -> None:
    """Raises BadInput unless the network takes these ids, the largest of the samples, if there are any.

    Computes, like `check_scores`.
    """
    ids = [field for field in largest if not field.is_floating_point()]
    if not ids:
        return
    try:
        with torch.no_grad():
            copied(network).eval()(*largest)
    except Exception as error:  # the user's own class may raise anything
        most = max(int(field.max()) for field in ids)
        defect = f"{type(network).__name__} does not take the ids of the samples, which go up to {most}"
        raise _of_user(error, defect) from error


def check_padding(
    network: nn.Module, alone: tuple[torch.Tensor, ...], padded: tuple[torch.Tensor, ...]
) -> None:
    """Raises BadInput if padding changes the scores of a sample, `alone` and first in the batch `padded`.

    Only the scores of its own positions are compared. Computes, like `check_scores`.
    """
    with torch.no_grad():
        judged = copied(network).eval()
        scores, others = (main_output(judged(*fields))[0] for fields in (alone, padded))
    others = others[tuple(map(slice, scores.shape))]
    if (scores - others).abs().max() > MOST_CHANGE * scores.std():
        raise BadInput.at(
            "model",
            f"{type(network).__name__}: the scores of a sample change with the padding after it; it "
            "must leave padding out (as transformer with padding: 0)",
        )


def has_batch_norm(network: nn.Module) -> bool:
    """Whether a module normalizes over the batch; a function may do so, too, in a network from outside."""
    return any(isinstance(part, _BatchNorm) for part in network.modules())


def least_batch(network: nn.Module, fields: tuple[torch.Tensor, ...]) -> int:
    """The fewest samples that the network can be trained on at once; `fields` is a batch of one.

    2 where batch norm would have one value per channel. Computes, like `check_scores`, and as in training.
    """
    try:
        with torch.no_grad(), seeded(0, "least_batch"):
            copied(network).train()(*fields)
    except Exception as error:  # training reports other defects of a user's own class
        return 2 if ONE_VALUE in str(error) else 1
    return 1


def _of_user(error: Exception, problem: str) -> Exception:
    """The exception to raise for an error in code that may be a user's."""
    if isinstance(error, BadInput) or is_out_of_memory(error):
        return error
    reason = (str(error) or "no reason given").splitlines()[0]
    expected = isinstance(error, RuntimeError | ValueError | TypeError)
    return BadInput.at("model", f"{problem}: {reason if expected else f'{type(error).__name__}: {reason}'}")


def image_shape(shape: tuple[int, ...], model: str, smallest: int) -> tuple[int, int, int]:
    """The shape, checked to be (channels, height, width) of at least `smallest` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise BadInput.at(
            "model",
            f"{model} takes images of shape (channels, height, width), at least "
            f"{smallest} x {smallest}; the dataset gives {shape}",
        )
    return shape[0], shape[1], shape[2]


def ids_shape(shape: tuple[int, ...], model: str) -> int:
    """The length of a text, from a shape that is checked to be (length,)."""
    if len(shape) != 1:
        raise BadInput.at("model", f"{model} takes ids of shape (length,); the dataset gives {shape}")
    return shape[0]


def perceptron(shape: tuple[int, ...], widths: tuple[int, ...]) -> nn.Sequential:
    """Flattens samples and applies linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = prod(shape)
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers[:-1])
