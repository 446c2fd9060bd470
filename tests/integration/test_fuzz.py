"""A few thousand broken messages of `eval/reliability/fuzz.py`, which sends a million when asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.troupe import free_ports

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("links", [[], ["--plain"]], ids=["with keys", "plain"])
def test_broken_messages_are_counted_and_an_honest_peer_notices_nothing(links):
    script = [sys.executable, "eval/reliability/fuzz.py", "--frames", "3000", "--noise", "60", *links]
    ran = subprocess.run(
        [*script, "--port", str(free_ports(3))],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["not_counted"] == figures["wrong_exchanges"] == 0
    assert figures["honest_rounds"] > 10
    assert set(figures["refused"]) >= REASONS
    if links:
        assert figures["refused"]["unfinished message"] == 1
        assert figures["endless_mb"] < 1000
    else:
        assert figures["refused"]["identity"] > 0
