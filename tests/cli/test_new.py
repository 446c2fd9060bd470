"""What `decentnode new` makes: it runs, passes its own tests, and replaces nothing."""

import os
import subprocess
import sys

import pytest

from decentnode.cli.new import SECTIONS, make_folder
from decentnode.config import loader
from decentnode.config.shipped import TEMPLATES
from tests.integration.spawner import ROOT, Spawner


@pytest.fixture(scope="module")
def environment():
    """Of commands whose Python has torch in memory, with no plug-ins of pytest."""
    python = str(Spawner.of_this_process().python())
    mine = {"PYTHONPATH": str(ROOT), "PYTHON": python, "PYTHON_EXEC": python}
    return os.environ | mine | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.slow
def test_an_experiment_with_all_parts_passes_its_own_tests_which_run_it(call, tmp_path, environment):
    folder = tmp_path / "mixing"
    code, out, _ = call("new", folder, "--with", "scheme,dataset,model,graph")
    assert code == 0
    assert out.endswith(f"\nnext: cd {folder} && ./run.sh rounds=5\n")
    assert {path.name for path in TEMPLATES.iterdir() if path.is_file()} - {"own_parts.yaml"} == {
        path.name for path in folder.iterdir()
    }
    readme = (folder / "README.md").read_text().splitlines()
    assert (readme[0], len(readme)) == ("# mixing", 10)
    tests = subprocess.run(
        [environment["PYTHON"], "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert tests.returncode == 0, tests.stdout
    assert "4 passed" in tests.stdout


@pytest.mark.slow
def test_an_experiment_without_parts_runs_by_its_script_from_anywhere(tmp_path, environment):
    folder = tmp_path / "plain"
    [*make_folder(folder)]
    assert len([*folder.iterdir()]) == 5
    assert "my_" not in "".join(path.read_text() for path in folder.iterdir())
    options = ["rounds=2", "communication=inproc", "evaluation.figures=false"]
    run = [str(folder / "run.sh"), *options]
    answer = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stderr
    assert "plain: all 8 nodes finished 2 rounds" in answer.stdout
    assert [path.name.startswith("plain-") for path in (folder / "runs").iterdir()] == [True]


@pytest.mark.parametrize("part", SECTIONS)
def test_each_part_alone_is_named_in_a_valid_configuration(tmp_path, monkeypatch, part):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / part
    [*make_folder(folder, [part])]
    settings = loader.load(folder / "experiment.yaml")
    named = {key: getattr(settings, key).name for key in SECTIONS.values()}
    assert {key for key, name in named.items() if name.startswith("my_")} == {SECTIONS[part]}
    assert settings.name == part
    for module in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[module]


def test_nothing_is_replaced_and_an_empty_folder_is_filled(call, tmp_path):
    (tmp_path / "there").mkdir()
    assert call("new", tmp_path / "there")[0] == 0
    (tmp_path / "there" / "experiment.yaml").write_text("mine")
    code, _, err = call("new", tmp_path / "there", "--with", "model")
    assert (code, err) == (2, f"{tmp_path / 'there'}: is not empty; name a folder that does not exist yet\n")
    assert (tmp_path / "there" / "experiment.yaml").read_text() == "mine"
    assert not (tmp_path / "there" / "my_model.py").exists()
