"""A stage between a signal and its bytes: payload -> payload, with an inverse.

Names of fields are fixed. A DENSE payload has one field, `vector`. A SPARSE one has `values`, and `indices`
(int32, ascending, of role INDEX) unless both ends compute them. A transform replaces the fields that it
encodes and keeps all others, so that stages combine freely.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, Role
from decentnode.core.rng import Context
from decentnode.core.state import Stateful
from decentnode.core.vector import ParameterLayout

VECTOR, VALUES, INDICES = "vector", "values", "indices"
Turn = tuple[slice, ...]
"""The parts of a signal that are sent in one round, where parts are sent by turns."""


class Transform(Stateful, ABC):
    """One stage of a chain. Both ends know its options, so its payload has only numbers.

    The sender calls `begin` and `encode`, and only they may change state. The receiver calls `decode`.
    """

    accepts: ClassVar[frozenset[Form]]
    """The forms of payloads that it encodes."""
    emits: ClassVar[Form | None]
    """The form of its payloads; None: that of its input."""
    changes_basis: ClassVar[bool] = False
    """A linear map to other coordinates, which keeps the signal DENSE; models may be mixed there."""
    depends_on_signal: ClassVar[bool] = False
    """Whether the sent coordinates depend on the signal, not on a seed alone."""
    needs_differences: ClassVar[bool] = False
    """Whether it needs differences, gradients, or models of schemes with `takes_correction`."""
    protects: ClassVar[bool] = False
    """Protects the signal from peers: no model is sent without it."""
    needs_float32: ClassVar[bool] = False
    """Accepts no signals of lower precision, such as bfloat16."""
    by_coordinate: ClassVar[bool] = False
    """Whether it treats values one by one, or in parts of neighboring ones, so that it suits shards."""
    unbiased: ClassVar[bool] = False
    """The expectation of the decoded signal is the encoded signal, for all options."""
    wire: ClassVar[str] = ""
    """Bytes on the wire for d values of b bytes (`training.dtype`), as a formula."""

    lossless: bool = False
    """Every value that is sent is decoded bit for bit, whichever coordinates are sent."""
    of_models: bool = False
    """Whether the chain encodes models, not differences or gradients; the chain sets it first."""
    selects_all: bool = False
    """Whether a stage before selects by the signal, and always all coordinates; the chain sets it first."""
    dimension: int
    """The number of coordinates of the signal at this stage; indices are below it. The chain sets it before
    it calls `layout`."""
    parameters: ParameterLayout | None = None
    """The parameters that the signal consists of; None after a stage that changes the basis."""
    input_layout: Layout
    """The layout of what it encodes; the chain sets it before it calls `layout`."""
    output_layout: Layout
    """The layout that `layout` returned."""

    @property
    def per_receiver(self) -> bool:
        """Whether each receiver has a payload of its own; then `encode` always gets a receiver."""
        return False

    @property
    def same_coordinates(self) -> bool:
        """Whether all nodes send the same coordinates: all of them, or those that a seed alone draws."""
        return self.emits is not Form.SPARSE

    @property
    def counts_rounds(self) -> bool:
        """Whether rounds differ by their number in which values are sent, or how many."""
        return False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The parts of the signal that all nodes send in rounds 0, 1, ..., again and again; or empty.

        They divide the signal. It is empty where any part may be sent in any round.
        """
        return ()

    @property
    def least_layers(self) -> int:
        """The fewest layers of a model that it can encode."""
        return 1

    @property
    def remembers(self) -> bool:
        """Whether the payload depends on earlier payloads."""
        return bool(self.state)

    @property
    def follows_mixing(self) -> bool:
        """Whether it counts on `mixed` after every mix; only where the chain encodes models."""
        return False

    def bind(self, parameters: ParameterLayout | None) -> None:
        """Receives `parameters`, before `layout` is called."""
        self.parameters = parameters

    @abstractmethod
    def layout(self, input_layout: Layout) -> Layout:
        """The layout of `encode`'s output for that of its input; called once, first. Raises BadInput."""

    def begin(self, signal: Tensor) -> Tensor:
        """Receives, before round 0, the signal that all nodes start from; returns that of the next stage."""
        return self.in_basis(signal)

    def mixed(self, signal: Tensor, mix: Tensor) -> None:
        """Receives, at the sender, what replaces the signal of a round; only if it `follows_mixing`."""

    @abstractmethod
    def encode(self, payload: Payload, context: Context) -> Payload:
        """Encodes a payload at the sender; never writes to the memory of its input."""

    @abstractmethod
    def decode(self, payload: Payload, context: Context) -> Payload:
        """The inverse, exact or within the bound that the class documents; raises PayloadError."""

    def in_basis(self, signal: Tensor) -> Tensor:
        """The receiver's own dense signal after this stage, where `context.fill` of the next one starts."""
        return signal


def values_field(layout: Layout) -> Field:
    """The field that holds the numbers of a DENSE or SPARSE payload."""
    return next(f for f in layout.fields if f.name in (VECTOR, VALUES))


def replaced(layout: Layout, name: str, *fields: Field, form: Form | None = None) -> Layout:
    """A layout with the field `name` replaced by `fields`, in its place; in the same form unless given."""
    kept: list[Field] = []
    for f in layout.fields:
        kept += fields if f.name == name else (f,)
    return Layout(tuple(kept), form or layout.form)


def passed_on(payload: Payload, layout: Layout) -> dict[str, Tensor]:
    """The fields of a payload that `layout` has, too: those that a stage does not replace."""
    names = {f.name for f in layout.fields}
    return {f.name: payload[f.name] for f in payload.layout.fields if f.name in names}


__all__ = [
    "INDICES", "VALUES", "VECTOR", "Context", "Field", "Form", "Layout", "Payload", "Role", "Transform",
    "Turn", "passed_on", "replaced", "values_field",
]  # fmt: skip
