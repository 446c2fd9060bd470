"""`--workers`: every test is run once, and nothing that goes wrong in a worker is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "test_mixed.py": """
        import os, pytest
        @pytest.fixture(scope="module")
        def made():
            print("made once")
            yield os.getpid()
        def test_passes(made): assert made == os.getpid()
        def test_fails(made): print("said before"); assert made == 0
        @pytest.mark.skip
        def test_skipped(): pass
        @pytest.fixture
        def breaks():
            yield
            raise OSError("in the teardown")
        def test_breaks_in_its_teardown(breaks): pass
        def test_dies(): os._exit(7)
        def test_is_taken_by_another(made, tmp_path): assert tmp_path.is_dir()
    """,
    "test_other.py": "def test_passes_too(tmp_path): assert tmp_path.is_dir()\n",
}


def pytest_with(folder, *words):
    for name, content in FILES.items():
        (folder / name).write_text(re.sub(r"^        ", "", content.lstrip("\n"), flags=re.MULTILINE))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DECENTNODE_TESTS_SPAWNER": str(folder)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = ["-m", "pytest", "-q", "-rA", "-p", "tests.support.forked_workers", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, *command, "--rootdir", str(folder), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_every_outcome_is_reported(tmp_path):
    done = pytest_with(tmp_path, "--workers", "2", "--costs", "tests")
    last = done.stdout.splitlines()[-1]
    assert re.match(r"2 failed, 4 passed, 1 skipped, 1 error in", last), done.stdout + done.stderr
    assert done.returncode == 1
    assert "the worker died in this test, exit code 7" in done.stdout
    assert "said before" in done.stdout and "in the teardown" in done.stdout
    # The worker that takes over makes the fixture of the module again.
    assert "PASSED test_mixed.py::test_is_taken_by_another" in done.stdout
    assert re.search(r"\d+\.\d +\d+\.\d  test_other.py::test_passes_too", done.stdout)


def test_the_first_failure_ends_all_where_that_is_asked(tmp_path):
    done = pytest_with(tmp_path, "--workers", "1", "-x")
    assert done.returncode == 1 and "stopping after 1 failures" in done.stdout, done.stdout + done.stderr
    assert "test_is_taken_by_another" not in done.stdout
