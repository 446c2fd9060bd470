"""Moniqua: sends only the last digits of a model, because neighbors know the first ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import xxhash
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.rng import generator
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.options import Bits, Fraction, PositiveFloat
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.transforms.base import values_field
from decentnode.transforms.chain import Chain
from decentnode.transforms.coding.bits import pack, packed_bytes, unpack

MOST_STEPS = 1 << 23
"""The most steps: in float32, values beyond have a coarser resolution than a step of the quantizer."""


@SHARINGS.register("moniqua")
@dataclass
class Moniqua(Sharing):
    """Sends models modulo a number, in few bits (Moniqua: Lu and De Sa, ICML 2020, Alg. 1).

    q_i = Q(y_i / B mod 1),   |Q(z) - z| <= delta,   B = 2 theta / (1 - 2 delta)
    x'_j = the value = q_j B (mod B) that is nearest to the receiver's own,   |x'_j - y_j| <= delta B
    x_i <- y_i + gamma sum_j w_ij (x'_j - x'_i)

    Right where no coordinate of two neighbors differs by theta or more before mixing. The payload has a hash
    of the output of Q before the modulo. A receiver that cannot determine the right value refuses that
    payload, and the node logs this, instead of an error of B.

    Q rounds to one of 2^bits values, at random (up or down) or to the nearest. At random: all nodes use the
    same random numbers, so equal models stay equal and the error is 0 on average. Then delta = 2^-bits, and
    differences of about gamma B delta remain. To the nearest: delta = 2^-(bits + 1), and smaller differences
    remain. No state; the graph may change and nodes may be lost. With few bits gamma must be small;
    `decentnode tune` finds it. The chain must be empty.
    """

    requirements = Requirements(float32=True)
    promises = Promises(keeps_mean=True, overlaps=True, wire="deg * (bits d / 8 + 8)")

    theta: PositiveFloat = 2.0
    bits: Bits = 8
    gamma: Fraction = 1.0
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    _own_steps: Tensor = field(init=False, repr=False)
    """The output of Q for the own model before the modulo, in whole steps."""

    def __post_init__(self) -> None:
        if self.bits == 1 and self.rounding == "stochastic":
            raise BadInput("moniqua with 1 bit needs rounding: nearest")

    @property
    def step(self) -> float:
        """The distance B / 2^bits of adjacent values of Q."""
        lost = 1 if self.rounding == "nearest" else 2
        return 2 * self.theta / ((1 << self.bits) - lost)

    @property
    def reach(self) -> float:
        return self.theta

    def check_chain(self, chain: Chain) -> None:
        if chain.stages:
            raise BadInput(f"moniqua quantizes models itself, so leave out {name_of(chain.stages[0])}")

    def payload_layout(self, phase: int = 0) -> Layout | None:
        size = packed_bytes(values_field(self.chain.layout).elements, self.bits)
        return Layout((Field("hash", torch.int64, 1), Field("codes", torch.uint8, size)), Form.QUANTIZED)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        steps = vector / self.step
        self._check_range(vector, steps, view)
        self._own_steps = self._rounded(steps, view.round).to(torch.int32)
        layout = self.payload_layout()
        assert layout is not None
        codes = pack((self._own_steps & ((1 << self.bits) - 1)).to(torch.uint8).cpu(), self.bits)
        content = {"hash": digest(self._own_steps), "codes": codes}
        return dict.fromkeys(view.targets, Payload.of(layout, content))

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        steps = vector / self.step
        differences = self.decode_each(
            incoming, view, lambda _, payload: self._unwrapped(payload, steps).sub_(self._own_steps)
        )
        # Whole numbers until here, so that equal models stay equal to the last bit.
        factor = self.gamma * self.step
        weighted_sum([(1.0, vector), *((factor * view.weights[j], d) for j, d in differences.items())], out)

    def _rounded(self, steps: Tensor, round: int) -> Tensor:
        if self.rounding == "nearest":
            return steps.round_()
        random = generator(self.setup.seed, "moniqua", round).random(steps.numel(), dtype=np.float32)
        return steps.add_(torch.from_numpy(random).to(steps.device)).floor_()

    def _unwrapped(self, payload: Payload, steps: Tensor) -> Tensor:
        """The whole steps of the sender: of all with these codes, those nearest to the own model."""
        codes = unpack(payload["codes"].cpu(), self.bits, steps.numel()).to(steps.device)
        turns = (steps - codes).mul_(2.0**-self.bits).round_().to(torch.int32)
        whole_steps = turns.mul_(1 << self.bits).add_(codes)
        if int(digest(whole_steps)) != int(payload["hash"]):
            raise PayloadError(
                f"in some coordinate it is {self.theta:g} or more from the own model; let the models "
                "differ less, or raise sharing.theta"
            )
        return whole_steps

    def _check_range(self, vector: Tensor, steps: Tensor, view: View) -> None:
        # One pass; a number that is not finite makes the larger of the two so.
        if not steps.numel() or float(torch.stack(steps.aminmax()).abs().max()) < MOST_STEPS:
            return
        index = int(torch.argmax(steps.abs()))
        value = f"{float(vector[index])}, found in {self.setup.layout.name_at(index)}"
        raise RunFailed(
            f"rank {view.rank}, round {view.round + 1}: moniqua cannot encode {value}; with this theta and "
            f"these bits it reaches {MOST_STEPS * self.step:g}"
        )


def digest(steps: Tensor) -> Tensor:
    """Returns 63 bits that differ, except by chance, between different numbers (int32), shape (1,)."""
    hash_value = xxhash.xxh3_64_intdigest(steps.cpu().numpy().data) >> 1
    return torch.tensor([hash_value], dtype=torch.int64)
