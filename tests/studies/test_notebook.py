"""The notebooks of docs run from top to bottom; studies.ipynb on a study as its sweep makes it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.results.test_study import make_run, recorded

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "studies.ipynb"
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


@pytest.mark.slow
def test_the_first_notebook_runs_with_fewer_rounds(tmp_path):
    text = "\n".join([SHOW, *map(as_shown, code_of(ROOT / "docs" / "quickstart.ipynb")), "print(shown)"])
    few = ', rounds=2, evaluation={"every": 1, "figures": False}'
    text = text.replace("rounds=40, ", "").replace("'rounds': 20", "'rounds': 2, 'evaluation.every': 1")
    for name in ("quickstart", "choco"):
        text = text.replace(f"decentnode.run('{name}'", f"decentnode.run('{name}'{few}")
    done = subprocess.run(
        [sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
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
    done = subprocess.run(
        [sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "finished [10, 20] [2000.0, 4000.0]"
    assert lines[1] == "0.004 MB per node"
    assert len(lines) == 6 and lines[2].startswith("choco - exact_diffusion: -5.00 points, p = ")
    assert lines[5] == str(["Run", "DataFrame", "Study", "DataFrame", "NotebookFigure", "DataFrame"])
