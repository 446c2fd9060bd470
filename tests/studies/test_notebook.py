"""The notebooks of docs run from top to bottom; studies.ipynb on a study as its sweep makes it."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.spawner import Spawner
from tests.results.test_study import make_run, recorded

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "studies.ipynb"
FOUR = {"name": "ring", "nodes": 4}
SCHEMES = {"gossip": (3000, 0.9), "choco": (1000, 0.8), "exact_diffusion": (3000, 0.85)}


SHOW = """
def show(value):
    # What a notebook asks the last value of a cell for.
    assert value._repr_html_() or value._repr_png_()
    shown.append(type(value).__name__)

shown = []
"""


def as_shown(cell: str) -> str:
    """The cell with its last line shown as a notebook does, if that is a value."""
    tree = ast.parse(cell)
    last = tree.body[-1]
    is_value = isinstance(last, ast.Expr) and not ast.unparse(last).startswith("print(")
    if is_value:
        last.value = ast.Call(ast.Name("show"), [last.value], [])
    return ast.unparse(tree)


def code_of(notebook: Path) -> list[str]:
    """The code cells of a notebook, which has no results."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "results are not kept"
    return ["".join(cell["source"]) for cell in cells]


def run_code(text: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs code in a folder, in a process that has torch in memory; it must succeed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [Spawner.of_this_process().python(), "-c", text],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_first_notebook_runs_with_fewer_rounds(tmp_path):
    text = "\n".join([SHOW, *map(as_shown, code_of(ROOT / "docs" / "quickstart.ipynb")), "print(shown)"])
    few = f', graph={FOUR}, rounds=2, evaluation={{"every": 1, "figures": False}}'
    text = text.replace("rounds=40, ", "")
    text = text.replace("'rounds': 20", f"'rounds': 2, 'graph': {FOUR}, 'evaluation.every': 1")
    for name in ("quickstart", "choco"):
        text = text.replace(f"decentnode.run('{name}'", f"decentnode.run('{name}'{few}")
    done = run_code(text, tmp_path)
    assert "finished 2 rounds" in done.stdout
    shown = ["Run", "DataFrame", "NotebookFigure", "Study", "NotebookFigure"]
    assert done.stdout.splitlines()[-1] == str(shown)


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    code = code_of(NOTEBOOK)
    (sweep,) = (text for text in code if '"sweep"' in text)
    assert "configs/studies/quick.yaml" in sweep
    for scheme, (sent, last) in SCHEMES.items():
        for seed in (0, 1):
            made = tmp_path / "runs" / "quick" / scheme / f"seed-{seed}"
            make_run(
                made, [(0.5, 0.6), (last, last + seed / 50)], seed, scheme, sent, True, recorded(scheme, seed)
            )
    # Its sweep takes most of a minute; tests/studies/test_sweep_runs.py covers the command.
    text = "\n".join([SHOW, *(as_shown(part) for part in code if part is not sweep), "print(shown)"])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    done = run_code(text, tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "finished [10, 20] [2000.0, 4000.0]"
    assert lines[1] == "0.004 MB per node"
    assert len(lines) == 6 and lines[2].startswith("choco - exact_diffusion: -5.00 points, p = ")
    assert lines[5] == str(["Run", "DataFrame", "Study", "DataFrame", "NotebookFigure", "DataFrame"])
