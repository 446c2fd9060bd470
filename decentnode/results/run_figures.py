"""Has a run drawn after its end, in a process of its own, so that no other process loads matplotlib."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.extension import RunExtension
from decentnode.results.extra import missing


class RunFigures(RunExtension):
    """The figures of a run, unless `evaluation.figures` is false."""

    def closing_lines(self) -> Iterator[tuple[str, str]]:
        if not self.experiment.settings.evaluation.figures:
            return
        pictures = make_figures(self.run_dir)
        if pictures.paths:
            more = f" and {len(pictures.paths) - 1} more" if len(pictures.paths) > 1 else ""
            yield "pictures", f"{pictures.paths[0].name}{more}"
        elif pictures.problem:
            yield "pictures", f"none: {pictures.problem}"


@dataclass(frozen=True)
class Pictures:
    """The pictures, or in one line why there are none."""

    paths: list[Path] = field(default_factory=list)
    problem: str = ""


def make_figures(run_dir: Path) -> Pictures:
    """Draws the run in this directory; a failure to draw raises nothing."""
    if lack := missing("matplotlib", "figures"):
        return Pictures(problem=lack)
    # -P: a file of the user such as random.py in the current folder would take the place of Python's own.
    command = [sys.executable, "-P", "-m", "decentnode.results.figures.plots", str(run_dir)]
    remedy = f"{shlex.join(['decentnode', 'plot', str(run_dir)])} draws them"
    package = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(package)]))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=Timeouts.drawing, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Pictures(problem=f"drawing took longer than {Timeouts.drawing:.0f} s and was ended; {remedy}")
    except OSError as error:
        return Pictures(problem=f"drawing could not be started: {error.strerror}")
    if done.returncode:
        silent = f"drawing was ended: {how_it_ended(done.returncode)}; {remedy}"
        messages = done.stderr.strip().splitlines() or [silent]
        return Pictures(problem=messages[-1])
    return Pictures([Path(line) for line in done.stdout.splitlines()])
