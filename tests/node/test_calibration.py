"""`decentnode calibrate`: the steps of a node as it makes them, and the pace that follows."""

import json
import time

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import decentnode
from decentnode.config import loader
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.node import calibration, child_answers
from decentnode.node.calibration import Calibration
from decentnode.node.experiment import Experiment

SMALL = {
    "graph": {"name": "ring", "nodes": 4},
    "dataset": {"name": "synthetic", "nodes": 4, "samples_per_node": 20, "features": 10},
    "model": "logistic_regression",
    "training": {
        "optimizer": {"name": "SGD", "lr": 0.1},
        "batch_size": 4,
        "steps_per_round": 1,
        "threads": 3,
    },
    "rounds": 2,
}


class Sleepy(nn.Linear):
    """A model whose steps take 20 ms, and which wants three threads."""

    def __init__(self) -> None:
        super().__init__(10, 10)

    def forward(self, inputs):
        if self.training:
            assert torch.get_num_threads() == 3
            time.sleep(0.02)
        return super().forward(inputs)


class Broken(Sleepy):
    """A model that fails in its steps."""

    def forward(self, inputs):
        if self.training:
            raise KeyError("weights")
        return nn.Linear.forward(self, inputs)


def pace(seconds):
    return Calibration(0, 1, 2, 0.0, seconds=list(seconds)).pace


def test_a_pace_is_the_median_and_a_spread_where_there_is_one():
    assert pace([0.0123456] * 9) == {"step_seconds": 0.0123, "slowdown": 1.0}
    # Single interrupted steps are no spread of the device.
    assert pace([0.01] * 98 + [1.0] * 2) == {"step_seconds": 0.01, "slowdown": 1.0}
    drawn = pace(np.random.default_rng(1).lognormal(np.log(0.2), 0.3, 4000))
    assert drawn["step_seconds"] == pytest.approx(0.2, rel=5 * 0.3 * 1.2533 / 4000**0.5)
    # The standard deviation of the 84 % quantile of a normal is 1.52 sigma / sqrt(n).
    assert drawn["slowdown"]["distribution"] == "lognormal"
    assert drawn["slowdown"]["sigma"] == pytest.approx(0.3, rel=5 * 1.52 / 4000**0.5)


def test_the_steps_of_a_node_are_measured_with_its_threads(tmp_path, monkeypatch):
    """A simulation needs no pace for it, and runs with the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration, "STEPS", 5)
    simulated = SMALL | {"communication": "simulated"}
    measured = decentnode.calibrate(simulated, model=Sleepy)
    assert 0.02 <= measured["step_seconds"] < 0.2
    assert (
        decentnode.validate(simulated, load=False, training={"pace": measured})["training"]["pace"][
            "step_seconds"
        ]
        == measured["step_seconds"]
    )
    with pytest.raises(BadInput, match=r"^arguments: model: Broken.forward raises KeyError: 'weights'"):
        decentnode.calibrate(SMALL, model=Broken)


def test_the_command_prints_a_section_to_paste(call, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    code, out, err = call("calibrate", path, "--steps", 7)
    assert code == 0
    (tmp_path / "paced.yaml").write_text(f"extends: small.yaml\n{out}")
    section = yaml.safe_load(out)["training"]["pace"]
    assert loader.load(tmp_path / "paced.yaml").training.slowed.seconds == section["step_seconds"] > 0
    assert err.startswith("7 steps of 4 samples on rank 0: median ") and "cpu, 3 threads; " in err
    code, out, _ = call("calibrate", path, "--steps", 4, "--json", "training.batch_size=1")
    measured = json.loads(out)
    assert code == 0 and len(measured["seconds"]) == 4 and measured["samples"] == 1
    assert measured["pace"]["step_seconds"] == pytest.approx(np.median(measured["seconds"]), rel=0.006)


def test_steps_that_do_not_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Timeouts, "calibration", 0.0)
    monkeypatch.setattr(child_answers, "_waited", lambda pid: 0.0)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"failures": {"start_deadline": 0.05}}))
    experiment = Experiment.from_yaml(path)
    experiment.network.forward = lambda inputs: time.sleep(9)
    with pytest.raises(BadInput) as caught:
        calibration.calibrate(experiment)
    assert str(caught.value) == (
        "training: 13 steps did not end within 0.05 s; write training.pace by hand, or take a smaller model"
    )
