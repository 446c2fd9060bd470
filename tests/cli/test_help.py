"""What `--help` says is spelled in one way in all commands, and its examples are right."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo

from decentnode.cli import app as cli
from decentnode.config import loader, shipped

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = typer.main.get_command(cli.app).commands
PLACEHOLDERS = {
    "CONFIG", "STUDY", "SCRIPT", "RUN", "FILE", "FOLDER", "NAME", "KIND", "KEY=VALUE", "RANK",
    "RANKS", "PARTS", "EXECUTOR",
}  # fmt: skip
RUN_HERE = {"list", "show", "graph", "new", "schema", "doctor"}
EXAMPLES = {name: (command.epilog or "").split("\n\n")[1:] for name, command in COMMANDS.items()}
LINES = [line for lines in EXAMPLES.values() for line in lines]


def test_every_command_has_examples_which_its_help_shows(call):
    for name, lines in EXAMPLES.items():
        assert lines
        assert all(line.startswith(f"decentnode {name}") for line in lines)
    text = " ".join(call("sweep", "--help")[1].split())
    assert "Examples: decentnode sweep studies/quick --plan decentnode sweep studies/quick seeds=3" in text


def test_every_command_has_a_group():
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert [command.name for command in cli.app.registered_commands] == grouped == [*COMMANDS]


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_right(call, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.partition(" > ")[0])[1:]
    context = COMMANDS[words[0]].make_context(words[0], words[1:])
    config, overrides = context.params.get("config"), context.params.get("overrides")
    if config and shipped.find_config(config) and words[0] != "import":
        loader.load(config, overrides or ())
    if words[0] in RUN_HERE and "mine.yaml" not in line and words != ["doctor"]:
        code, out, err = call(*words)
        assert (code, err) == (0, "")
        assert out


def test_placeholders_are_those_of_the_list():
    """Every argument and every path has one of them."""
    for command in cli.app.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *infos = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
            for info in infos:
                shown = (info.metavar or "").removesuffix("...")
                is_needed = isinstance(info, ArgumentInfo) or "Path" in str(kind)
                if shown or (is_needed and not info.hidden):
                    assert {*shown.split("|")} <= PLACEHOLDERS, f"{command.callback.__name__} {name}: {shown}"


def test_pictures_are_drawn_with_draw_and_the_old_spelling_still_works(call, tmp_path):
    drawing = {name for name, command in COMMANDS.items() if any(p.name == "draw" for p in command.params)}
    assert drawing == {"graph", "privacy", "partition", "compare"}
    shown = [p.name for c in COMMANDS.values() for p in c.params if "--figure" in p.opts and not p.hidden]
    assert shown == []
    for option in ("--draw", "--figure"):
        path = tmp_path / f"{option}.svg"
        assert call("partition", "quickstart", option, path)[0] == 0
        assert path.stat().st_size > 1000


def test_the_time_limits_need_no_configuration(call):
    code, out, _ = call("doctor", "--limits")
    assert (code, out.splitlines()[0]) == (0, "limit, seconds, formula, and what it bounds:")
    assert "deadline                 60  failures.deadline" in out
    assert (
        "deadline                  9  failures.deadline"
        in call("doctor", "quickstart", "failures.deadline=9", "--limits")[1]
    )


def test_the_shell_completes_commands_and_shipped_configurations(tmp_path):
    (tmp_path / "quick.yaml").touch()
    (tmp_path / "quick.txt").touch()

    def completed(words: str) -> list[str]:
        asked = {"_DECENTNODE_COMPLETE": "complete_bash", "COMP_WORDS": words}
        asked["COMP_CWORD"] = str(words.count(" "))
        answer = subprocess.run(
            [sys.executable, "-m", "decentnode"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)} | asked, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        return answer.stdout.split()

    assert completed("decentnode run quick") == ["quickstart", "quick.yaml"]
    assert completed("decentnode sweep studies/q") == ["studies/quick"]
    assert completed("decentnode part") == ["partition"]
