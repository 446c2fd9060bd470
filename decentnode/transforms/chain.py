"""Transforms in sequence, checked when the chain is built."""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload, as_bytes, dense_layout
from decentnode.core.registry import name_of
from decentnode.core.state import Stateful
from decentnode.core.vector import HALVES, Entry, ParameterLayout, describe_not_finite, needs_float32
from decentnode.errors import BadInput, Defect, RunFailed
from decentnode.transforms.base import Context, Transform, Turn, values_field
from decentnode.transforms.sent_coordinates import SentCoordinates

SENT = "sent"
"""The key of the counts among the states of the stages."""


class Wrapper(Transform):
    """A transform around all that follow it, which are a chain of their own: it receives their output."""

    rest_of_chain: "Chain"


class Chain(Stateful):
    """Encodes a flat signal through all transforms in order, and decodes it in reverse order.

    The leading transforms that only change the basis are also available separately (`to_basis`,
    `from_basis`). Mixing is linear, so a scheme can sum coefficients and transform the sum back once.
    """

    def __init__(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None, first: int = 0, of_models: bool = False,
    ) -> None:  # fmt: skip
        """Raises BadInput when a transform cannot encode its predecessor's output, counted from `first`.

        `of_models`: the signals are models themselves, which sets the default of some options.
        """
        for transform in transforms:
            transform.of_models = of_models
        check_order(transforms)
        self.stages = tuple(transforms)
        self.dtype, self.parameters, self._first = dtype, parameters, first
        self._recent: list[tuple[Tensor, Payload]] = []
        self.sent: SentCoordinates | None = None
        """How often each coordinate was sent, from `count_sent` on."""
        self.layouts = [dense_layout(elements, dtype)]
        self.transforms = self._bound(transforms, dtype)
        for behind in self.stages[len(self.transforms) :]:
            if behind.follows_mixing:
                before = name_of(self.transforms[-1])
                reason = f"follows the mix of models; {before} before it sends something else"
                raise BadInput(f"{name_of(behind)} {reason}")
        self.basis = next(
            (i for i, t in enumerate(self.transforms) if not t.changes_basis), len(self.transforms)
        )

    def _bound(self, transforms: Sequence[Transform], dtype: torch.dtype) -> tuple[Transform, ...]:
        parameters, dimension, selects_all = self.parameters, 0, False
        bound: list[Transform] = []
        for index, transform in enumerate(transforms, self._first):
            transform.bind(parameters)
            if self.layouts[-1].form is Form.DENSE:
                dimension = values_field(self.layouts[-1]).elements
            transform.dimension, transform.input_layout = dimension, self.layouts[-1]
            transform.selects_all = selects_all
            if isinstance(transform, Wrapper):
                elements = self.layouts[-1].fields[0].elements
                behind = transforms[len(bound) + 1 :]
                transform.rest_of_chain = Chain(
                    behind, elements, dtype, parameters=parameters, first=index + 1
                )
            where, name = f"transforms[{index}]", name_of(transform)
            if transform.needs_float32 and dtype in HALVES:
                raise BadInput.at(where, f"{name} {needs_float32(dtype)}")
            try:
                transform.output_layout = transform.layout(self.layouts[-1])
            except BadInput as error:
                raise BadInput(
                    *(Defect.at(where, f"{name} {defect.what}") for defect in error.defects)
                ) from None
            self.layouts.append(transform.output_layout)
            bound.append(transform)
            if transform.emits is Form.SPARSE:
                sent = values_field(transform.output_layout)
                is_whole = sent.elements == dimension and not transform.output_layout.has_indices
                # A selection by a seed never has indices.
                selects_all = is_whole and transform.depends_on_signal
            elif transform.output_layout is transform.input_layout:
                # A coder of indices that had nothing to do; a second one is a mistake as ever.
                selects_all = False
            if isinstance(transform, Wrapper):
                break
            parameters = None if transform.changes_basis else parameters
        return tuple(bound)

    @cached_property
    def follows_mixing(self) -> bool:
        """Whether some stage counts on `mixed` after every mix."""
        return any(transform.follows_mixing for transform in self.stages)

    def mixed(self, vector: Tensor, mix: Tensor) -> None:
        """Receives the mix that replaces a node's model, both shape (d,), for stages that follow it."""
        if not self.follows_mixing:
            return
        for transform in self.transforms:
            if transform.follows_mixing:
                transform.mixed(vector, mix)
            vector, mix = transform.in_basis(vector), transform.in_basis(mix)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the chain's payloads."""
        return self.layouts[-1]

    @cached_property
    def per_receiver(self) -> bool:
        """Whether each receiver has a payload of its own."""
        return any(transform.per_receiver for transform in self.stages)

    @property
    def protects(self) -> bool:
        """Whether some stage protects the signal from peers."""
        return any(transform.protects for transform in self.stages)

    @property
    def corrects(self) -> bool:
        """Whether some stage sends later what the stages after it lose."""
        return any(transform.needs_differences for transform in self.stages)

    @property
    def selects(self) -> bool:
        """Whether some coordinates are not sent."""
        return any(transform.emits is Form.SPARSE for transform in self.stages)

    @cached_property
    def rounds(self) -> bool:
        """Whether a sent value may be decoded as another value, in the chain's basis."""
        return any(not transform.lossless for transform in self.transforms[self.basis :])

    @cached_property
    def only_rounds(self) -> bool:
        """Whether it rounds one payload for all, and no stage corrects or hides what that loses."""
        return self.rounds and not (self.corrects or self.protects or self.per_receiver)

    def count_sent(self) -> SentCoordinates | None:
        """Counts from now on how often each coordinate is sent; None: no stage selects some."""
        for stage in self.transforms:
            if isinstance(stage, Wrapper):
                self.sent = stage.rest_of_chain.count_sent()
            elif stage.emits is Form.SPARSE:
                self.sent = SentCoordinates(stage.dimension)
        return self.sent

    @property
    def same_coordinates(self) -> bool:
        """Whether all nodes send the same coordinates in a round."""
        return all(transform.same_coordinates for transform in self.stages)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The parts of the signal that are sent in rounds 0, 1, ..., again and again; mostly the whole."""
        whole = ((slice(0, self.layouts[0].fields[0].elements),),)
        return next((transform.turns for transform in self.stages if transform.turns), whole)

    def begin(self, signal: Tensor) -> None:
        """Passes the signal that all nodes start from to the transforms, before round 0."""
        for transform in self.transforms:
            signal = transform.begin(signal)

    def encode(self, signal: Tensor, context: Context) -> Payload:
        """The payload of a flat signal; without transforms it is the signal itself, not a copy.

        A signal of higher precision than the chain's is rounded first. Raises RunFailed when there are
        transforms and the signal is not finite, and BadInput where a transform needs the receiver and the
        context has none.
        """
        if self.basis:
            # In another basis such a value spreads, and its position does not identify a parameter.
            self._refuse_nonfinite(signal, context, self.parameters)
        return self.encode_coefficients(self.to_basis(signal), context)

    def encode_coefficients(self, coefficients: Tensor, context: Context) -> Payload:
        """Does `encode` for a signal that is in the chain's basis already."""
        if self.per_receiver and context.receiver is None:
            name = next(name_of(transform) for transform in self.stages if transform.per_receiver)
            raise BadInput.at(
                "sharing",
                f"one payload is encoded for all neighbors, but {name} sends each another one; "
                "return self.encode(vector, view) in outgoing, or encode for each with it as the receiver",
            )
        coefficients = coefficients.to(self.dtype)
        if not self.transforms:
            # Made once for each of the two slots of the vector.
            for known, payload in self._recent:
                if known is coefficients:
                    return payload
            payload = Payload(self.layout, as_bytes(coefficients))
            self._recent = [*self._recent[-1:], (coefficients, payload)]
            return payload
        self._refuse_nonfinite(coefficients, context, None if self.basis else self.parameters)
        payload = Payload(self.layouts[self.basis], as_bytes(coefficients))
        for transform in self.transforms[self.basis :]:
            payload = transform.encode(payload, context)
            if self.sent is not None and transform.emits is Form.SPARSE:
                self.sent.add(transform, payload, context)
        return payload

    def to_basis(self, signal: Tensor) -> Tensor:
        """The signal in the chain's basis; itself when no transform changes it."""
        for transform in self.transforms[: self.basis]:
            signal = transform.in_basis(signal)
        return signal

    def from_basis(self, coefficients: Tensor, context: Context) -> Tensor:
        """The inverse of `to_basis`."""
        payload = Payload(self.layouts[self.basis], as_bytes(coefficients))
        for transform in reversed(self.transforms[: self.basis]):
            payload = transform.decode(payload, context)
        return payload["vector"]

    def decode_coefficients(self, payload: Payload, context: Context) -> Tensor:
        """Does `decode` down to the chain's basis; `context.fill` is in that basis, too."""
        return self.decode(payload, context, self.basis)

    def decode(self, payload: Payload, context: Context, first: int = 0) -> Tensor:
        """The flat signal before stage `first` of a payload, without a copy where no transform needs one."""
        stages, device = self.transforms[first:], payload.buffer.device
        if not stages:
            return payload["vector"]
        fills: list[Tensor | None] = [context.fill]
        for transform in stages:
            fills.append(None if fills[-1] is None else transform.in_basis(fills[-1]))
        for transform, fill in zip(reversed(stages), reversed(fills[:-1]), strict=True):
            # Many transforms compute in host memory; the next one, and `fill`, may be elsewhere.
            payload = transform.decode(payload, context.filled_with(fill)).to(device)
        return payload["vector"]

    def _refuse_nonfinite(self, signal: Tensor, context: Context, parameters: ParameterLayout | None) -> None:
        if found := describe_not_finite(signal, parameters):
            where = f"rank {context.sender}, round {context.round + 1}"
            raise RunFailed(f"{where}: {name_of(self.stages[0])} cannot encode {found}")

    def copy(self) -> "Chain":
        """A chain of the same transforms with state of its own, for a second signal."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        """The state of every transform that has one, by its position."""
        counts = {} if self.sent is None else {SENT: self.sent.state_dict()}
        return {str(i): t.state_dict() for i, t in enumerate(self.stages) if t.state} | counts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`."""
        for index, inner in state.items():
            if index != SENT:
                self.stages[int(index)].load_state_dict(inner)
            elif self.sent is not None:
                self.sent.load_state_dict(inner)


def trial_layout(transforms: Sequence[Transform], rows: int = 8, columns: int = 8) -> ParameterLayout:
    """Returns a model of small matrices for trial chains, as many as the transforms need layers."""
    layers = max((transform.least_layers for transform in transforms), default=1)
    shape = torch.Size((rows, columns))
    return ParameterLayout(tuple(Entry(f"trial.{i}.weight", shape, i * shape.numel()) for i in range(layers)))


def check_order(transforms: Sequence[Transform]) -> None:
    """Raises BadInput, with both names, when a transform cannot encode its predecessor's output."""
    forms = [Form.DENSE]
    for index, transform in enumerate(transforms):
        if forms[-1] not in transform.accepts:
            before = name_of(transforms[index - 1]) if index else "the signal"
            allowed = " or ".join(sorted(transform.accepts))
            reason = f"{name_of(transform)} takes {allowed} but {before} gives {forms[-1]}"
            raise BadInput.at(f"transforms[{index}]", f"{reason}; {_remedy(transforms, index, forms)}")
        forms.append(transform.emits or forms[-1])
    remembering = next((transform for transform in transforms if transform.remembers), None)
    if remembering is not None:
        refuse_own_payloads(transforms, f"{name_of(remembering)} remembers one thing that was sent to all")


def _remedy(transforms: Sequence[Transform], index: int, forms: Sequence[Form]) -> str:
    """The remedy where the transform at `index` cannot encode the last of the forms before it."""
    if not index:
        return "put one that selects or rounds before it, such as top_k"
    before, form = transforms[index - 1], forms[-2]
    swapped = form in transforms[index].accepts and (transforms[index].emits or form) in before.accepts
    return f"put it before {name_of(before)}" if swapped else "leave one of them out"


def refuse_own_payloads(transforms: Sequence[Transform], why: str) -> None:
    """Raises BadInput with `why` when a transform encodes per neighbor."""
    for index, transform in enumerate(transforms):
        if transform.per_receiver:
            raise BadInput.at(
                f"transforms[{index}]", f"{name_of(transform)} sends each neighbor another payload, but {why}"
            )
