"""The output of `decentnode calibrate`: the pace of this machine, as part of a configuration."""

import json
import sys
from collections.abc import Iterator

from decentnode.config import yaml_source
from decentnode.config.settings import Settings
from decentnode.node import calibration
from decentnode.node.experiment import Experiment


def report(settings: Settings, steps: int, as_json: bool) -> Iterator[str]:
    """The lines to print; standard error has what was measured. Raises BadInput."""
    measured = calibration.calibrate(Experiment.from_settings(settings), steps)
    for line in measured.lines:
        print(line, file=sys.stderr)
    if as_json:
        low, middle, high = measured.quantiles
        yield json.dumps(
            {
                "pace": measured.pace,
                "rank": measured.rank,
                "device": measured.device,
                "threads": measured.threads,
                "processors": measured.processors,
                "load": measured.load,
                "samples": measured.samples,
                "median": middle,
                "q16": low,
                "q84": high,
                "seconds": measured.seconds,
            }
        )
        return
    yield from yaml_source.dump({"training": {"pace": measured.pace}}).splitlines()
