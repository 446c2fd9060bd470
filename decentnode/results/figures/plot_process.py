"""Starts the drawing of a run in a process of its own, so that no other process loads matplotlib."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.core.timeouts import Timeouts


@dataclass(frozen=True)
class Pictures:
    """The pictures, or in one line why there are none."""

    paths: list[Path] = field(default_factory=list)
    problem: str = ""


def make_figures(run_dir: Path) -> Pictures:
    """Draws the run in this directory; a failure to draw raises nothing."""
    # -P: a file of the user such as random.py in the current folder would take the place of Python's own.
    command = [sys.executable, "-P", "-m", "decentnode.results.figures.plots", str(run_dir)]
    package = Path(__file__).parents[3]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(package)]))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=Timeouts.drawing, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Pictures(problem=f"drawing took longer than {Timeouts.drawing:.0f} s and was ended")
    except OSError as error:
        return Pictures(problem=f"drawing could not be started: {error.strerror}")
    if done.returncode:
        messages = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
        return Pictures(problem=messages[-1])
    return Pictures([Path(line) for line in done.stdout.splitlines()])
