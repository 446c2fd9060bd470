"""The output of `decentnode calibrate`: the pace of this machine, as part of a configuration."""

import json
import sys
from collections.abc import Iterator

import msgspec

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
        found = msgspec.to_builtins(measured) | {"median": middle, "q16": low, "q84": high}
        del found["defects"]
        yield json.dumps({"pace": measured.pace} | found)
        return
    yield from yaml_source.dump({"training": {"pace": measured.pace}}).splitlines()
