"""What every benchmark ends with: its targets in words, then one line of JSON."""

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn


@dataclass(frozen=True)
class Target:
    """A figure and what it has to reach."""

    name: str
    value: float
    bound: Literal["at least", "at most"]
    limit: float

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of the limit."""
        return self.value >= self.limit if self.bound == "at least" else self.value <= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict:>6}  {self.name}: {self.value:.3g}, {self.bound} {self.limit:g}"


class OneLineParser(argparse.ArgumentParser):
    """A parser that refuses arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help shows all options\n")


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = OneLineParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--small", action="store_true", help="only show that it works")
    return made


def show(figures: dict[str, Any]) -> None:
    """Prints one line of a benchmark's table."""
    print("  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


def conclude(
    benchmark: str,
    small: bool,
    figures: Sequence[dict[str, Any]],
    ratio: dict[str, float],
    targets: Sequence[Target],
) -> None:
    """Prints the targets and, as the last line, everything as JSON."""
    for target in targets:
        print(target)
    if small:
        print("a small run: its figures say nothing about speed")
    content = {
        "benchmark": benchmark,
        "small": small,
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "figures": figures,
        "ratio": ratio,
        "targets": [{**asdict(target), "met": target.met} for target in targets],
    }
    print(json.dumps(content), flush=True)


def median(values: Sequence[float]) -> float:
    """The middle value, rounded to what is worth reading."""
    return float(f"{statistics.median(values):.4g}")


def median_ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """The middle of the ratios of pairs: each was timed back to back, so a busy machine slowed down both."""
    return median([a / b for a, b in zip(ours, others, strict=True)])
