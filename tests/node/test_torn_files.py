"""A few kills by eval/reliability/torn_files.py: nothing is torn, or older than what was acknowledged."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "eval" / "reliability" / "torn_files.py"


def test_kills_at_random_instants_tear_nothing():
    # In a process of its own: it forks, which is best done where no other thread runs.
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "25"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 kills over" in done.stdout and ": 0 wrong" in done.stdout
