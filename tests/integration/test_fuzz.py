"""A few thousand broken messages of `eval/reliability/fuzz.py`, which sends a million when asked."""

import json
import os
import subprocess

import pytest

from tests.integration.spawner import ROOT, Spawner
from tests.support.processes import free_ports

LIMIT = 100.0
REASONS = {
    "magic",
    "kind",
    "checksum",
    "run id",
    "rank",
    "body length",
    "header length",
    "frame count",
    "hello",
}


PLAIN = "--plain"


@pytest.fixture(scope="module")
def running():
    """Both attacks at once: most of their time is waiting."""
    first, python = free_ports(6), Spawner.of_this_process().python()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = {
        kind: subprocess.Popen(
            [python, "eval/reliability/fuzz.py", "--frames", "2000", "--noise", "60", *options],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for kind, options in {
            "guarded": ["--port", str(first)], "plain": [PLAIN, "--port", str(first + 3)]
        }.items()
    }  # fmt: skip
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["guarded", "plain"])
def test_broken_messages_are_counted_and_an_honest_peer_notices_nothing(running, kind):
    output, errors = running[kind].communicate(timeout=LIMIT)
    assert running[kind].returncode == 0, output + errors
    figures = json.loads(output.splitlines()[-1])
    assert figures["not_counted"] == figures["wrong_exchanges"] == 0
    assert figures["honest_rounds"] > 10
    assert set(figures["refused"]) >= REASONS
    if kind == "guarded":
        assert figures["refused"]["identity"] > 0
