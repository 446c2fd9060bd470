"""The scripts for a machine with a GPU, as far as they can be tried without one."""

import json
import subprocess
import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[2] / "eval" / "gpu"
CHECKS = """
import json, sys, time
from pathlib import Path

import verify

output, python = Path(sys.argv[1]), sys.executable
leaves_a_process = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
checks = [
    verify.Check("part", "good", [python, "-c", "print('3 passed')"], 20, verify.read_pytest),
    verify.Check("part", "leaves a process", [python, "-c", leaves_a_process], 20),
    verify.Check("part", "wrong code", [python, "-c", "raise SystemExit('a reason')"], 20),
    verify.Check("part", "no figures", [python, "-c", "print('0 passed')"], 20, verify.read_pytest),
    verify.Check("part", "too slow", ["sleep", "60"], 5),
]
verify.adopt_orphans()
outcomes = [verify.perform(check, output, 20.0) for check in checks]
outcomes.append(verify.perform(checks[0], output, 1.0))
print(json.dumps([[o.result, o.figures, o.reason, o.log] for o in outcomes]))
"""


def test_what_a_machine_with_a_gpu_lacks_is_listed_with_its_versions():
    """The script refuses a dependency of pyproject.toml that it does not know."""
    answer = subprocess.run(["bash", GPU / "wheels.sh", "--list"], capture_output=True, text=True, timeout=20)
    assert answer.returncode == 0, answer.stderr
    assert {"pyzmq", "msgspec", "pydantic"} <= {line.split("==")[0] for line in answer.stdout.splitlines()}


def test_a_check_ends_its_processes_and_says_what_was_wrong(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHECKS, tmp_path], cwd=GPU, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    good, leaves, wrong, empty, slow, late = json.loads(done.stdout)
    assert good == ["ok", {"passed": 3}, "", ""]
    assert leaves[0] == "ok"
    pid = int((tmp_path / "leaves_a_process.log").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert wrong == ["FAILED", {}, "exit code 1, not 0", "a reason\n"]
    assert empty[:3] == ["FAILED", {}, "AssertionError: no test ran"]
    assert slow[:3] == ["LIMIT", {}, "killed after 5 s"]
    assert late[0] == "no time"
