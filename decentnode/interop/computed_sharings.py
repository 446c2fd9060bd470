"""Sharing classes of decentralizepy whose options follow from several keys, or from a computation."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from decentnode.core.text import quoted
from decentnode.errors import MISSING_KEY, Defect
from decentnode.interop.conversion import OWN, Conversion
from decentnode.interop.driver_arguments import Arguments
from decentnode.interop.ini_file import IniEntry

Section = Mapping[str, IniEntry]
MOST_STEPS = 10_000
WIDENING = 0.05
"""The mean of what `RandomAlphaIncremental` adds to the end of its range in a round: 0 to 0.1."""


def growing(start: float, end: float, k: int, rounds: int | None) -> list[list[int | float]]:
    """The steps of `GrowingAlpha` in so many rounds: (end - start) / k in each k-th, up to 1.

    It does not stop at `end`, which it reaches after k^2 rounds.
    """
    step, alpha, pairs = (end - start) / k, start, list[list[int | float]]()
    for round in count(k - 1, k):
        is_over = rounds is not None and round >= rounds
        if not step or alpha >= 1.0 or alpha <= 0.0 or is_over or len(pairs) == MOST_STEPS:
            return pairs
        alpha = min(alpha + step, 1.0)
        pairs.append([round, alpha])
    raise AssertionError("count has no end")


def changed(alphas: Sequence[float], rounds: Sequence[int]) -> list[list[int | float]]:
    """The steps of `ManualAdapt`: `rounds` are counted from 1 and have the fractions behind the first."""
    return [[round - 1, min(alpha, 1.0)] for alpha, round in zip(alphas[1:], rounds, strict=False)]


def widening(start: float, end: float) -> tuple[list[float], list[list[int | list[float]]]]:
    """Returns the fractions of `RandomAlphaIncremental` in round 0, and those from later rounds on.

    It draws evenly from a range whose end grows until 1. Here the range has steps of 0.05.
    """
    ends = [end]
    while ends[-1] < 1.0:
        ends.append(min(round(ends[-1] + WIDENING, 9), 1.0))
    first, *later = (_range(start, last) for last in ends)
    return first, [[number, fractions] for number, fractions in enumerate(later, 1)]


def _range(start: float, end: float) -> list[float]:
    """Numbers from `start` to `end`, evenly spaced, about 0.05 apart."""
    steps = max(1, round((end - start) / WIDENING))
    return [round(start + (end - start) * step / steps, 4) for step in range(steps + 1)]


def _number(conversion: Conversion, section: Section, key: str, default: float) -> float:
    """The number of a key; what is none is a defect."""
    value = section[key].value if key in section else default
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    entry = section[key]
    conversion.report(entry.line, Defect((entry.section, key), f"must be a number, not {quoted(entry.text)}"))
    return default


def _top_k_option(conversion: Conversion, section: Section, key: str, option: str, value: Any) -> None:
    entry = section.get(key, section["sharing_class"])
    conversion.set(entry, "sharing", "transforms", 0, option, value=value)


def _set_steps(
    conversion: Conversion, section: Section, keys: tuple[str, str], first: Any, pairs: Sequence[Any]
) -> None:
    """Sets the fraction of round 0, and those from later rounds on."""
    if pairs and pairs[0][0] == 0:
        first, pairs = pairs[0][1], pairs[1:]
    _top_k_option(conversion, section, keys[0], "fraction", first)
    if pairs:
        _top_k_option(conversion, section, keys[1], "fraction_from", [*pairs])


def _growing(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    named = section["sharing_class"]
    if "init_alpha" not in section:
        wanted = f"the default of {OWN} is 0, which sends nothing and ends its nodes; give a number above 0"
        conversion.report(named.line, Defect((named.section, "init_alpha"), MISSING_KEY, wanted))
        return
    start, end = (_number(conversion, section, key, 1.0) for key in ("init_alpha", "max_alpha"))
    k = _number(conversion, section, "k", 10)
    if k != int(k) or k < 1:
        what = f"must be a whole number > 0, not {quoted(section['k'].text)}"
        conversion.report(section["k"].line, Defect((named.section, "k"), what))
        return
    pairs = growing(start, end, int(k), arguments.iterations)
    _set_steps(conversion, section, ("init_alpha", "k"), start, pairs)
    if pairs and pairs[-1][1] > end:
        entry = section.get("max_alpha", named)
        conversion.note(entry, f"reached after {int(k) ** 2} rounds, and then passed, as in {OWN}")


def _changing(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    lists = []
    for key in ("change_alpha", "change_rounds"):
        entry = section.get(key)
        value = entry.value if entry is not None else None
        kinds: Any = int | float if key == "change_alpha" else int
        if not isinstance(value, list) or not value or not all(isinstance(v, kinds) for v in value):
            line = (entry or section["sharing_class"]).line
            conversion.report(line, Defect(("SHARING", key), "must be a list of numbers, such as [10, 30]"))
            return
        lists.append(value)
    alphas, rounds = lists
    pairs = changed(alphas, rounds)
    if len(alphas) != len(rounds) + 1:
        what = f"has {len(rounds)} rounds for {len(alphas) - 1} changes; only the first {len(pairs)} count"
        conversion.note(section["change_rounds"], what)
    _set_steps(conversion, section, ("change_alpha", "change_rounds"), alphas[0], pairs)


def _widening(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    start, end = (
        _number(conversion, section, "range_start", 0.1),
        _number(conversion, section, "range_end", 0.2),
    )
    if not 0 < start < end <= 1:
        entry = section.get("range_end", section["sharing_class"])
        what = f"must be above range_start and at most 1, and that above 0, not {start:g} and {end:g}"
        conversion.report(entry.line, Defect((entry.section, "range_end"), what))
        return
    fractions, pairs = widening(start, end)
    _set_steps(conversion, section, ("range_start", "range_end"), fractions, pairs)
    conversion.note(
        section["sharing_class"],
        "the end of its range grows by a number drawn from 0 to 0.1 in each round; here by their mean, 0.05",
    )


def _bounded(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    alpha, bound = (
        _number(conversion, section, "alpha", 1.0),
        _number(conversion, section, "lower_bound", 0.1),
    )
    _top_k_option(conversion, section, "alpha", "fraction", alpha)
    if bound:
        _top_k_option(conversion, section, "lower_bound", "random", bound * alpha)
        _top_k_option(conversion, section, "lower_bound", "random_below", bound)
    entry = section.get("metro_hastings")
    if entry is None or conversion.is_true(section, "metro_hastings"):
        what = f"mixes with Metropolis-Hastings weights, where {OWN} ends with an error"
        conversion.note(entry or section["sharing_class"], what)
    else:
        conversion.set(entry, "sharing", "weights", value="uniform")
        conversion.set(entry, "sharing", "fill", value="sent")


def _half_random(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    half = _number(conversion, section, "alpha", 1.0) / 2
    _top_k_option(conversion, section, "alpha", "fraction", half)
    _top_k_option(conversion, section, "alpha", "random", half)
    conversion.note(
        section["sharing_class"], f"each value is sent once; {OWN} may draw one again that it sends already"
    )


COMPUTED: dict[str, Callable[[Conversion, Section, Arguments], None]] = {
    "GrowingAlpha": _growing,
    "ManualAdapt": _changing,
    "RandomAlphaIncremental": _widening,
    "LowerBoundTopK": _bounded,
    "TopKPlusRandom": _half_random,
}
"""What sets options that several keys of a sharing class, or a computation, decide."""
