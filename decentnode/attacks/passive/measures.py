"""How well an attack works: curves of membership, similarity of images, lower bounds of epsilon."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

Scores = NDArray[np.float64]
K1, K2 = 0.01, 0.03
"""The constants of SSIM (Wang et al., 2004, section III.B)."""
WINDOW = 7
MOST_EPSILON = 100.0


def auc(members: Scores, others: Scores) -> float:
    """The probability that a member has a higher score than another sample; ties count half.

    The area under the ROC curve (Hanley and McNeil, Radiology 1982).
    """
    order = np.sort(others)
    below = np.searchsorted(order, members, "left") + np.searchsorted(order, members, "right")
    return float(below.mean() / (2 * len(others)))


def tpr_at(members: Scores, others: Scores, fpr: float = 0.01) -> float:
    """The share of members above a threshold that at most a share `fpr` of the others exceeds.

    As Carlini et al. (2022, section III) ask for; with n others the rate is floor(fpr n) / n.
    """
    allowed = math.floor(fpr * len(others) + 1e-9)
    threshold = np.sort(others)[::-1][allowed] if allowed < len(others) else -math.inf
    return float((members > threshold).mean())


def psnr(image: Tensor, original: Tensor) -> float:
    """The peak signal-to-noise ratio of images with values from 0 to 1, in decibels; at most 100."""
    error = float((image - original).double().square().mean())
    return 100.0 if error <= 1e-10 else -10 * math.log10(error)


def ssim(image: Tensor, original: Tensor) -> float:
    """The structural similarity of images (channels, height, width) with values from 0 to 1.

    Wang et al. (IEEE TIP 2004, equation 13), with uniform windows of 7 x 7 and unbiased variances.
    """
    x, y = image.double()[None], original.double()[None]
    size = min(WINDOW, *x.shape[-2:])
    count = size * size

    def mean(z: Tensor) -> Tensor:
        return avg_pool2d(z, size, 1)

    unbiased = count / (count - 1) if count > 1 else 1.0
    mx, my = mean(x), mean(y)
    vx, vy = (unbiased * (mean(z * z) - m * m) for z, m in ((x, mx), (y, my)))
    both = unbiased * (mean(x * y) - mx * my)
    c1, c2 = K1**2, K2**2
    top = (2 * mx * my + c1) * (2 * both + c2)
    return float((top / ((mx * mx + my * my + c1) * (vx + vy + c2))).mean())


def _binomial(trials: int, probability: float) -> Scores:
    """The probabilities of 0..trials successes."""
    k = np.arange(trials + 1)
    ways: Scores = np.array(
        [math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in k]
    )
    if probability <= 0:
        return np.array([1.0] + [0.0] * trials)
    probabilities: Scores = np.exp(ways + k * math.log(probability) + (trials - k) * math.log1p(-probability))
    return probabilities


def audit_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most probable it can be that so many guesses are correct, if (epsilon, delta) holds.

    Steinke et al. (NeurIPS 2023, theorem 5.2): with delta 0 the number of correct guesses is at most
    Binomial(guesses, e^epsilon / (1 + e^epsilon)); delta adds 2 canaries delta max_i P[correct - i <= . <
    correct] / i.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    chances = _binomial(guesses, chance) if chance < 1 else np.eye(1, guesses + 1, guesses)[0]
    beta = float(chances[correct:].sum())
    below = np.cumsum(chances[:correct][::-1])
    alpha = float((below / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, beta + 2 * canaries * delta * alpha)


def audited_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that is refuted with this confidence; 0 where none is."""
    low, high = 0.0, MOST_EPSILON
    if audit_p_value(canaries, guesses, correct, epsilon=0.0, delta=delta) > 1 - confidence:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        refuted = audit_p_value(canaries, guesses, correct, epsilon=middle, delta=delta) <= 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def as_scores(values: Tensor) -> Scores:
    """The values as numpy has them, float64; what is not finite becomes the lowest."""
    scores: Scores = torch.nan_to_num(values.double(), nan=-1e300, posinf=1e300, neginf=-1e300).numpy()
    return scores
