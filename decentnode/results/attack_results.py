"""What attacks found: `attacks.jsonl` in the directory of a run, a line for each result (docs/attacks.md)."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from decentnode.core.atomic_files import sync_folder, write_durably
from decentnode.errors import BadInput
from decentnode.formats.reader import StrPath

ATTACKS_FILE = "attacks.jsonl"
MEASURES = ("auc", "tpr_at_1_percent", "epsilon_lower", "ssim", "psnr", "accuracy", "solvable", "f1")
"""The larger, the more an adversary has learned."""


class AttackResult(msgspec.Struct, kw_only=True):
    """What one adversary found about one victim; None where a measure has no meaning."""

    attack: str
    adversary: str
    """The party as text: `ranks 3,5` or `links 0-1`."""
    victim: int | None
    """The rank that the result is about; None: all victims together."""
    round: int
    auc: float | None = None
    """The probability that a member, or an update that is there, scores higher than one that is not."""
    auc_bound: float | None = None
    """The most that the accountant allows."""
    tpr_at_1_percent: float | None = None
    """The share of members that are found where 1 % of the other samples are taken for members."""
    epsilon_lower: float | None = None
    """A lower bound of epsilon with 95 % confidence."""
    ssim: float | None = None
    psnr: float | None = None
    """The peak signal-to-noise ratio in decibels."""
    accuracy: float | None = None
    chance: float | None = None
    """The accuracy of guessing."""
    l1_error: float | None = None
    """The sum of absolute errors of a distribution, from 0 to 2."""
    solvable: int | None = None
    """The number of updates of a victim that the messages determine, if what the attack assumes holds; of all
    victims together: of nodes."""
    relative_error: float | None = None
    """The norm of the error over that of the truth, where the truth is recorded."""
    deviations: float | None = None
    """The root mean square of the error, in deviations of the noise that protects."""
    hops: int | None = None
    """The hops from the victim to the party."""
    f1: float | None = None
    """The harmonic mean of precision and recall, of edges."""
    picture: str | None = None
    """A file beside this one."""


def write_results(run: Path, results: Iterable[AttackResult]) -> None:
    """Writes all results at once, so that a reader never sees a part; raises OSError."""
    write_durably(run / ATTACKS_FILE, [msgspec.json.encode(result) + b"\n" for result in results])
    sync_folder(run)


def read_results(run: StrPath) -> list[AttackResult]:
    """The results of a run, empty where nothing was attacked; raises BadInput for a damaged file."""
    path = Path(run) / ATTACKS_FILE
    if not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=AttackResult) for line in path.read_bytes().splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: damaged: {error}") from error


def best(results: Sequence[AttackResult]) -> dict[str, dict[str, float]]:
    """Returns the highest value of each measure by attack, over adversaries and rounds.

    Where an attack has judged all victims together, this counts: the best of many victims is high by chance.
    """
    best_values: dict[str, dict[str, float]] = {}
    together = {(result.attack, result.adversary) for result in results if result.victim is None}
    for result in results:
        if result.victim is not None and (result.attack, result.adversary) in together:
            continue
        values = best_values.setdefault(result.attack, {})
        for name in MEASURES:
            value = getattr(result, name)
            if value is not None:
                values[name] = max(value, values.get(name, value))
    return best_values
