"""Fragments of models to random peers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.core.rng import generator
from decentnode.core.vector import ParameterLayout
from decentnode.graph.base import View
from decentnode.options import Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Post, Posts
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


@SHARINGS.register("divshare")
@dataclass
class DivShare(AsyncSharing):
    """Sends fragments of its model to random peers while it trains (DivShare: Biswas et al., WWW 2025).

    x[f] <- (x[f] + sum_j y_j[f]) / (1 + number of y_j[f])      for each fragment f

    y_j[f] is the newest fragment f of peer j since the last average. A node averages before every `every`
    local steps, and afterwards sends each fragment to `degree` random targets of its own, in random order. So
    a slow link carries some fragments in time, instead of no model. All fragments have the same length; the
    last one is filled with zeros. The mean of all models is not kept. State: the fragments since the last
    average.
    """

    promises = replace(
        AsyncSharing.promises,
        about_mean="does not keep it: receivers average what arrives",
        wire="fragments * degree * C(d / fragments) per round of steps",
    )
    state: ClassVar = (*AsyncSharing.state, "_fragments")

    fragments: Positive = 10
    """Fragments of a model (1 / Omega in the paper)."""
    degree: Positive | None = None
    """Random targets of each fragment (J in the paper); null: log2 of the number of nodes."""
    every: Positive = 1
    """Local steps between two averages (H in the paper)."""

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        # Of one fragment: its elements have no names.
        return super().make_chain(transforms, ceil(elements / self.fragments), dtype, parameters=None)

    @property
    def tags(self) -> int:
        return self.fragments

    @property
    def burst(self) -> int:
        return self.fragments

    def begin(self, vector: Tensor) -> None:
        # The chain encodes no whole model, so it gets none.
        self._latest, self._steps = {}, 0
        self._fragments: dict[int, dict[int, Tensor]] = {}

    def before_step(self, vector: Tensor, view: View) -> Posts:
        if self._steps % self.every == 0:
            for fragment, received in sorted(self._fragments.items()):
                local = self._part(vector, fragment)
                for j in sorted(received):
                    local.add_(received[j][: local.numel()])
                local.div_(1 + len(received))
            self._fragments = {}
        return ()

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._steps += 1
        if self._steps % self.every:
            return ()
        posts: list[Post] = []
        for fragment in range(self.fragments):
            if self._part(vector, fragment).numel():
                targets = self.draw_targets(view, self._degree, fragment)
                posts += self.posts(self._filled(vector, fragment), targets, view, tag=fragment)
        order = generator(self.setup.seed, "fragments", view.rank, self._steps).permutation(len(posts))
        return [posts[k] for k in order]

    @property
    def _degree(self) -> int:
        return self.degree or max(1, ceil(log2(self.setup.num_nodes)))

    @property
    def _length(self) -> int:
        return self.chain.layouts[0].fields[0].elements

    def _part(self, vector: Tensor, fragment: int) -> Tensor:
        return vector[fragment * self._length : (fragment + 1) * self._length]

    def _filled(self, vector: Tensor, fragment: int) -> Tensor:
        part = self._part(vector, fragment)
        if part.numel() == self._length:
            return part
        return torch.cat((part, part.new_zeros(self._length - part.numel())))

    def fill_for(self, message: PeerMessage, vector: Tensor) -> Tensor | None:
        return self._filled(vector, message.tag)

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        received = self._fragments.setdefault(message.tag, {})
        received[message.source] = signal.to(vector.dtype, copy=True)
        return ()
