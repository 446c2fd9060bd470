"""Inputs with names reach the parameters of these names of a network's forward."""

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from torch import nn

from decentnode.errors import BadInput

BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class ArgumentsByName:
    """A hook before forward that passes the arguments by names instead of by place."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args[len(self.names) :], {**dict(zip(self.names, args, strict=False)), **kwargs}


def pass_by_name(network: nn.Module, names: Sequence[str]) -> None:
    """Makes the network take inputs of these names by place where its forward has parameters of these names.

    Where it has none of them, or the first ones in this order, nothing changes: inputs are passed by place.
    Raises BadInput where it has some of them alone.
    """
    parameters = [one for one in signature(network.forward).parameters.values() if one.name != "self"]
    known = [one.name for one in parameters if one.kind in (*BY_PLACE, Parameter.KEYWORD_ONLY)]
    first = [one.name for one in parameters if one.kind in BY_PLACE][: len(names)]
    found = [name for name in names if name in known]
    if not found or [*names] == first:
        return
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    if len(found) < len(names) and not takes_any:
        missing = next(name for name in names if name not in known)
        problem = f"{type(network).__name__} takes {', '.join(known)}, and no {missing!r}"
        raise BadInput.at("dataset.inputs", f"{problem}; name the columns that it takes")
    network.register_forward_pre_hook(ArgumentsByName(names), with_kwargs=True)
