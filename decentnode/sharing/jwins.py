"""JWINS: parts of models in a wavelet basis."""

from dataclasses import dataclass, field, replace
from typing import Literal

from decentnode.core.registry import SHARINGS, TRANSFORMS
from decentnode.options import Fraction, Positive
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.base import Transform
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.sparsify.top_k import TopK

FRACTIONS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 1.0)


@SHARINGS.register("jwins")
@dataclass
class Jwins(Gossip):
    """Mixes the wavelet coefficients that changed most (JWINS: Dhasade et al., ICDCS 2023, Alg. 1).

    z_i = DWT(y_i);   sent: the k_i of z_i with the largest |z_i - z_i when last sent|
    z_i <- sum_j w_ij (z_j where it was sent, else z_i),   x_i <- inverse DWT(z_i)

    Each node draws the fraction k_i / d from `fractions` in each round. From `metadata_cap` on it sends all
    coefficients and no indices. The change of a coefficient counts since it was last sent, by training and by
    mixing; `by` as in `top_k` counts another one. With the default fractions 34.3 % of the coefficients are
    sent. State: what was last sent, d. The mean of all models drifts, as gaps are filled with the own
    coefficients. Where all fractions reach the cap, all coefficients are sent, as in gossip.
    """

    promises = replace(
        Gossip.promises,
        by_coordinate=False,
        takes_correction=False,
        about_mean="does not keep the mean of all models, unless all fractions are beyond the cap",
        wire="deg * (b k + indices), k = 0.343 d on average",
    )

    fill: Literal["own", "zero", "sent"] = field(default="own", init=False)
    wavelet: str = "sym2"
    levels: Positive = 4
    fractions: list[Fraction] = field(default_factory=lambda: list(FRACTIONS))
    metadata_cap: Fraction = 0.5
    by: Literal["change", "training", "round"] = "change"
    index_coder: Literal["auto", "elias_gamma", "rice", "bitmap"] = "auto"

    def first_transforms(self) -> tuple[Transform, ...]:
        basis = Wavelet(self.wavelet, self.levels)
        selection = TopK(list(self.fractions), by=self.by, metadata_cap=self.metadata_cap)
        return basis, selection, TRANSFORMS.find(self.index_coder)()
