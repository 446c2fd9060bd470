"""A machine that ends before all have met ends the others at once, with a line."""

import os
import signal
import time

import pytest

from tests.integration.running import Run, wait_until
from tests.integration.test_machines import FOUR, LOOPBACK

OTHERS = ["127.0.0.1, ranks 0-1", "127.0.0.2, ranks 2-3"]
SOON = 15.0
"""Seconds; the others would wait for 60."""
SLOW = """
import time
from dataclasses import dataclass

from decentnode.datasets.digits import Digits


@dataclass
class Slow(Digits):
    seconds: float = 0.0

    def read(self, seed):
        time.sleep(self.seconds)
        return super().read(seed)
"""


def start(tmp_path, port, machine, *overrides):
    ports = [f"mapping.rendezvous_port={port}", f"communication={{name: zeromq, base_port: {port + 10}}}"]
    words = [LOOPBACK, FOUR, *ports, f"machine={machine}", "security=none", "rounds=3", *overrides]
    limits = {"rendezvous_notice": 0.5}
    return Run(tmp_path / f"machine{machine}", words, limits=limits)


@pytest.mark.parametrize("machine", [0, 1])
def test_a_dataset_that_one_machine_lacks(machine, tmp_path):
    bad = ["dataset={name: image_folder, path: nowhere}"]
    runs = [start(tmp_path, 31340 + 50 * machine, m, *(bad if m == machine else [])) for m in range(2)]
    began = time.monotonic()
    assert [run.wait(SOON) for run in runs] == [2, 2], runs[0].story
    assert time.monotonic() - began < SOON
    other = runs[1 - machine].text
    teller = "machine 0: " if machine == 0 else ""
    line = f"{teller}machine {machine} ({OTHERS[machine]}) has ended before the run began: "
    assert line in other and "nowhere" in other and "Traceback" not in other
    assert f"machine {machine} ({OTHERS[machine]}) ends before the run begins: " in runs[machine].text


@pytest.mark.parametrize(
    ("machine", "signum"), [(0, signal.SIGTERM), (1, signal.SIGINT), (1, signal.SIGTERM)]
)
def test_a_signal_to_one_that_waits_for_the_others(machine, signum, tmp_path):
    """Machine 2 comes never."""
    port = 31440 + 50 * machine + 10 * (signum == signal.SIGINT)
    three = LOOPBACK.replace("]", ", {address: 127.0.0.3, nodes: 1}]")
    runs = [start(tmp_path, port, m, three, "graph={name: ring, nodes: 5}") for m in range(2)]
    wait_until(lambda: all("waiting for machine 2 (127.0.0.3" in run.text for run in runs), 30)
    os.kill(runs[machine].process.pid, signum)
    assert runs[machine].wait(SOON) == 128 + signum
    assert runs[1 - machine].wait(SOON) == 4, runs[0].story
    said = {
        0: "machine 0: the run was stopped on machine 0",
        1: "has ended before the run began: it was stopped",
    }
    assert said[machine] in runs[1 - machine].text


def test_a_mistake_in_the_words_of_one_machine(tmp_path):
    runs = [start(tmp_path, 31540, m, *(["roudns=5"] if m else [])) for m in range(2)]
    assert [run.wait(SOON) for run in runs] == [2, 2], runs[0].story
    line = (
        "machine 1 (127.0.0.2, ranks 2-3) has ended before the run began: command line: roudns: unknown key"
    )
    assert line in runs[0].text, runs[0].text
    alone = Run(tmp_path / "alone", ["roudns=5"])
    began = time.monotonic()
    assert alone.wait(SOON) == 2 and alone.text.count("\n") == 1 and time.monotonic() - began < 5


def test_a_signal_while_the_dataset_is_read(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    runs = [start(tmp_path, 31660, m, f"dataset={{name: 'slow:Slow', seconds: {30 * m}}}") for m in range(2)]
    wait_until(lambda: "waiting for machine 1" in runs[0].text, 30)
    os.kill(runs[1].process.pid, signal.SIGTERM)
    assert [run.wait(SOON) for run in runs] == [4, 143], runs[0].story
    line = f"machine 1 ({OTHERS[1]}) has ended before the run began: it was stopped\n"
    assert runs[0].text.endswith(line)
