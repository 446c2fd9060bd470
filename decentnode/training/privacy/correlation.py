"""Noise of private steps that is correlated over the steps of a node: C^-1 Z instead of Z.

Z has a row of independent normal numbers for each of T steps, and C is lower triangular, so that the noise of
a step needs no later draw. What is released of T gradients g, g + C^-1 Z, tells as much as C g + Z: the
Gaussian mechanism whose sensitivity is that of C (Denisov et al., NeurIPS 2022, theorem 2.1).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.atomic_files import write_durably
from decentnode.core.registry import CORRELATIONS
from decentnode.core.rng import RandomSource
from decentnode.core.state import Stateful
from decentnode.errors import BadInput, RunFailed
from decentnode.options import Positive

Matrix = NDArray[np.float64]
Workload = Callable[[], Matrix]
"""Returns G, shape (T, T): the noise C^-1 Z of variance 1 moves all models of a run by tr(C^-T G C^-1) per
number, squared and added up over nodes and steps."""
Band = Positive | Literal["auto", "dense"]
AUTO_BAND = 16
MOST_STEPS, MOST_FACTORIZED = 5000, 1000
"""The most steps whose sensitivity is computed, which takes T^3 / period operations, and of which the best C
is, which takes T^3 some hundred times."""
ZERO = 1e-12
"""An entry of so small a part of the largest is none."""
LEAST_GAIN, MOST_TRIALS, MEMORY = 1e-11, 5000, 20


@dataclass(frozen=True, eq=False)
class Participation:
    """In which steps of a node one of its samples may be."""

    steps: int
    """T, the number of steps."""
    period: int
    """b: after a step with it, at least b - 1 steps are without it."""
    is_drawn: bool
    """Whether it is in each of its steps with a probability only, drawn anew."""

    @cached_property
    def phases(self) -> NDArray[np.int64]:
        """The phase of each step, shape (T,): a sample is in steps of one phase alone, if in any.

        Where it is drawn, each step is a phase of its own: the accountant counts how many there are.
        """
        each = np.arange(self.steps)
        return each if self.is_drawn else each % self.period

    def sensitivity(self, matrix: Matrix) -> Matrix:
        """How far C moves by one sample in the first 1, 2, ..., T steps, shape (T,), in clipping norms.

            max over phases of sqrt(sum over p, q of the phase of |X_pq|),   X = C'C of those steps

        (Choquette-Choo et al., ICML 2023, theorem 2). The bound of more steps holds for fewer, too.
        """
        found = np.zeros(len(matrix))
        for phase in np.unique(self.phases):
            mine = np.flatnonzero(self.phases == phase)
            gram = np.zeros((len(mine), len(mine)))
            for step, row in enumerate(matrix[:, mine]):
                gram += np.outer(row, row)
                taken = np.searchsorted(mine, step, side="right")
                found[step] = max(found[step], np.abs(gram[:taken, :taken]).sum())
        found = np.sqrt(found)
        bounds: Matrix = np.minimum.accumulate(found[::-1])[::-1]
        return bounds


@dataclass(frozen=True, eq=False)
class Strategy:
    """C of a node's steps, and what a sample can move."""

    matrix: Matrix
    """C, lower triangular, shape (T, T); its largest column has norm 1."""
    participation: Participation

    @cached_property
    def sensitivities(self) -> Matrix:
        """The sensitivity of the first 1, 2, ..., T steps."""
        return self.participation.sensitivity(self.matrix)

    @cached_property
    def recurrence(self) -> tuple[Matrix, bool]:
        """The rows of which the noise of a step is made, and whether these are draws, or noises, before it.

        The narrower of C^-1, n_t = sum_s (C^-1)_ts z_s, and of C, n_t = (z_t - sum_s<t C_ts n_s) / C_tt.
        """
        inverse: Matrix = np.linalg.inv(self.matrix).astype(np.float64)
        of_draws = width_of(inverse) < width_of(self.matrix)
        return (inverse, True) if of_draws else (self.matrix, False)

    @property
    def kept(self) -> int:
        """How many vectors of the size of the model a node keeps."""
        return width_of(self.recurrence[0]) - 1

    def error(self, gram: Matrix) -> float:
        """tr(C^-T G C^-1): how far noise of variance 1 moves all models, squared and added up."""
        inverse = np.linalg.inv(self.matrix)
        return float(((gram @ inverse) * inverse).sum())


def width_of(matrix: Matrix) -> int:
    """The number of diagonals of a lower triangular matrix, from the main one to the last that is not 0."""
    rows, columns = np.nonzero(np.abs(matrix) > ZERO * np.abs(matrix).max())
    return int((rows - columns).max()) + 1


class Correlation(ABC):
    """How the noise of a node's steps hangs together; the fields of a subclass are its YAML options."""

    is_independent: ClassVar[bool] = False
    """Whether C = I, so that a step needs neither those before it nor a plan of those after it."""
    has_edges: ClassVar[bool] = False
    """Whether neighbors add noise that cancels."""

    def bands(self, steps: int, most: int | None) -> Sequence[int]:
        """The numbers of diagonals of C that are tried, of which the best is taken.

        `most`: what samples that are drawn allow; None: they are not drawn.
        """
        return (steps,)

    def gram(self, steps: int, workload: Workload) -> Matrix:
        """G by which the best number of diagonals is found: by default that of a node that is alone."""
        sums = np.tri(steps)
        return sums.T @ sums

    @abstractmethod
    def matrix(self, participation: Participation, band: int, workload: Workload) -> Matrix:
        """C for such steps, lower triangular, of any size; at most `band` diagonals. Raises BadInput."""

    def strategy(self, participation: Participation, band: int, workload: Workload) -> Strategy:
        """C of this size: its largest column has norm 1, as that of independent noise."""
        if participation.steps > MOST_STEPS and not participation.is_drawn:
            what = f"at most {MOST_STEPS:,} steps of a node can be planned, not {participation.steps:,}"
            raise BadInput.at("training.privacy", f"{what}; make fewer, or use sampling: poisson")
        matrix = self.matrix(participation, band, workload)
        return Strategy(matrix / np.sqrt((matrix**2).sum(0).max()), participation)


@CORRELATIONS.register("independent", "none")
@dataclass
class Independent(Correlation):
    """C = I: each step has noise of its own (Abadi et al., 2016, algorithm 1)."""

    is_independent: ClassVar[bool] = True

    def bands(self, steps: int, most: int | None) -> Sequence[int]:
        return (1,)

    def matrix(self, participation: Participation, band: int, workload: Workload) -> Matrix:
        return np.eye(participation.steps)


@CORRELATIONS.register("anti_pgd", "antipgd")
@dataclass
class AntiPgd(Correlation):
    """n_t = z_t - z_(t-1): C is 1 on and below its diagonal (Orvieto et al., ICML 2022, equation 2).

    What a step adds, the next one takes back. The sensitivity grows with the steps.
    """

    def matrix(self, participation: Participation, band: int, workload: Workload) -> Matrix:
        return np.tri(participation.steps)


@dataclass
class Banded(Correlation):
    """C with few diagonals, so that a node keeps few vectors."""

    band: Band = "auto"
    """The diagonals of C; a node keeps one vector less, of the size of the model. auto: the best of 1, 2, 4,
    8 and 16 that the samples of a step allow; dense: all."""

    def bands(self, steps: int, most: int | None) -> Sequence[int]:
        if self.band != "auto":
            return (steps if self.band == "dense" else min(self.band, steps),)
        if most is None:  # then more diagonals are never worse
            return (min(AUTO_BAND, steps),)
        return [band for band in (1, 2, 4, 8, AUTO_BAND) if band <= min(steps, most)]


@CORRELATIONS.register("square_root", "banded_square_root")
@dataclass
class SquareRoot(Banded):
    """The square root of the matrix of ones (Fichtenberger, Henzinger and Upadhyay, ICML 2023, section 3).

    C_ts = c_(t-s), c_0 = 1, c_j = c_(j-1) (2 j - 1) / (2 j), of which the first diagonals are kept (Kalinin
    and Lampert, NeurIPS 2024, definition 1). Best, but for a constant, for sums of gradients; knows no graph.
    """

    def matrix(self, participation: Participation, band: int, workload: Workload) -> Matrix:
        steps = participation.steps
        places = np.arange(1, steps)
        column = np.cumprod([1.0, *((2 * places - 1) / (2 * places))])
        column[band:] = 0
        apart = np.subtract.outer(np.arange(steps), np.arange(steps))
        return np.where(apart >= 0, column[apart.clip(0)], 0.0)


@CORRELATIONS.register("factorized", "mafalda", "matrix_factorization")
@dataclass
class Factorized(Banded):
    """The C whose noise moves all models least (MAFALDA-SGD: Bellet et al., ICLR 2026, section 4).

    min over C of sens(C)^2 tr(C^-T G C^-1),  G = sum over nodes i of A_i' A_i,

    where A_i tells how the noise of node i's steps moves the models of all nodes after each later step: by
    the products of the mixing weights of the rounds in between. C'C is the optimum of a convex problem, in
    which steps of one phase are orthogonal, so that sens(C) is exact.
    """

    workload: Literal["graph", "alone"] = "graph"
    """Whether other nodes count: by the mixing weights of the graph, or as if the node were alone."""

    def gram(self, steps: int, workload: Workload) -> Matrix:
        return workload() if self.workload == "graph" else super().gram(steps, workload)

    def matrix(self, participation: Participation, band: int, workload: Workload) -> Matrix:
        steps, phases = participation.steps, participation.phases
        if band == 1 and participation.is_drawn:
            return np.eye(steps)
        if steps > MOST_FACTORIZED:
            raise BadInput.at(
                "training.privacy.correlation",
                f"factorized plans at most {MOST_FACTORIZED:,} steps of a node, not {steps:,}; make fewer, "
                "or use square_root, which needs no plan",
            )
        gram = self.gram(steps, workload)
        is_near = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) < band
        others = np.not_equal.outer(phases, phases) | np.eye(steps, dtype=bool)
        asked = xxhash.xxh3_128_hexdigest(gram.tobytes() + is_near.tobytes() + others.tobytes())

        def is_of_form(kept: Matrix) -> bool:
            is_lower = kept.shape == (steps, steps) and np.array_equal(kept, np.tril(kept))
            return is_lower and bool(np.isfinite(kept).all()) and width_of(kept) <= band

        return cached(
            f"factor-{asked}", lambda: factor(best_gram(gram, is_near & others, phases)), is_of_form
        )


def cached(name: str, make: Callable[[], Matrix], is_valid: Callable[[Matrix], bool]) -> Matrix:
    """What was made in an earlier run on this machine, or is made and kept for later ones."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decentnode" / f"{name}.npy"
    with suppress(OSError, ValueError, EOFError):
        kept: Matrix = np.load(path, allow_pickle=False)
        if is_valid(kept):
            return kept
    made = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        np.save(content, made)
        write_durably(path, [content.getbuffer()])
    return made


def factor(gram: Matrix) -> Matrix:
    """The lower triangular C with C'C = X."""
    return np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1].astype(np.float64)


def best_gram(gram: Matrix, allowed: NDArray[np.bool_], phases: NDArray[np.int64]) -> Matrix:
    """The positive definite X with the least tr(X^-1 G); entries that are not allowed are 0.

    Its diagonal sums to 1 in each phase (Choquette-Choo et al., ICML 2023, section 4: the primal problem). By
    a quasi-Newton method of limited memory (Nocedal, 1980) in the space of allowed changes.
    """
    gram = gram / np.trace(gram)
    members = np.array([(phases == phase).sum() for phase in phases])
    of_phase = np.equal.outer(phases, phases) / members

    def value(x: Matrix) -> tuple[float, Matrix]:
        """The value, infinite unless X is positive definite, and the gradient in the allowed space."""
        try:
            np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            return np.inf, x
        inverse = np.linalg.inv(x)
        slope = -inverse @ gram @ inverse
        slope = np.where(allowed, (slope + slope.T) / 2, 0.0)
        slope[np.diag_indices_from(slope)] -= of_phase @ np.diag(slope)
        return float((inverse * gram).sum()), slope

    x: Matrix = np.diag(1.0 / members)
    least, slope = value(x)
    pairs: list[tuple[Matrix, Matrix]] = []
    for _ in range(MOST_TRIALS):
        direction = -_by_curvature(slope, pairs)
        fall = float((slope * direction).sum())
        if fall >= 0:
            pairs, direction, fall = [], -slope, -float((slope**2).sum())
        size = 1.0 if pairs else 0.1 / max(float(np.abs(direction).max() * len(x)), 1e-300)
        while True:
            found, turned = value(x + size * direction)
            if found <= least + 1e-4 * size * fall or size < 1e-14:
                break
            size /= 2
        gain = least - found
        if not gain > 0:
            break
        step, turn = size * direction, turned - slope
        if (step * turn).sum() > 0:
            pairs = [*pairs[1 - MEMORY :], (step, turn)]
        x, least, slope = x + step, found, turned
        if gain < LEAST_GAIN * least:
            break
    return x


def _by_curvature(slope: Matrix, pairs: Sequence[tuple[Matrix, Matrix]]) -> Matrix:
    """The slope times the inverse curvature that the last steps and turns tell (Nocedal, 1980)."""
    result, parts = slope.copy(), []
    for step, turn in reversed(pairs):
        part = (step * result).sum() / (step * turn).sum()
        result -= part * turn
        parts.append(part)
    if pairs:
        step, turn = pairs[-1]
        result *= (step * turn).sum() / (turn * turn).sum()
    for (step, turn), part in zip(pairs, reversed(parts), strict=True):
        result += (part - (turn * result).sum() / (step * turn).sum()) * step
    return result


class CorrelatedNoise(Stateful):
    """The rows of C^-1 Z of one node, one for each step.

    What secure generators have drawn cannot be drawn again, so a checkpoint has all that later rows need.
    """

    state: ClassVar = ("step", "kept")

    def __init__(self, strategy: Strategy, dtype: torch.dtype) -> None:
        self.step = 0
        """The number of rows drawn."""
        self.kept: list[Tensor] = []
        """The last rows of the recurrence, the newest last, each of shape (d,)."""
        self._strategy = strategy
        self._dtype = dtype

    def draw(self, source: RandomSource, count: int) -> Tensor:
        """The next row, shape (count,), float64."""
        rows, are_draws = self._strategy.recurrence
        if self.step >= len(rows):
            raise RunFailed(f"the noise of {len(rows)} steps was planned, and this is another one")
        drawn, width = source.normal(count), self._strategy.kept
        row = rows[self.step]
        noise = row[self.step] * drawn if are_draws else drawn
        for before, kept in enumerate(reversed(self.kept), 1):
            part = float(row[self.step - before])
            noise = noise.add(kept, alpha=part if are_draws else -part)
        if not are_draws:
            noise = noise / float(row[self.step])
        if width:
            newest = (drawn if are_draws else noise).to(self._dtype, copy=True)
            self.kept = [*self.kept, newest][-width:]
        self.step += 1
        return noise
