"""The commands that the pages show, and whether an installation understands them.

As a script it reads commands as JSON from standard input, judges them with the wheel that is on the path, and
prints the problems. It imports nothing of the tests, so that a wheel can be asked without a checkout.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

NEEDS_CHECKOUT = re.compile(r"needs?\s+a\s+checkout")
"""What a page says of a command that a wheel cannot run, in its section or above the first section."""
MENTION = re.compile(
    r"(decentnode|python eval/|torchrun|sbatch|(\./)?(eval|docs|tests)/\S+\.sh|eval/\S+\.py \w)\b.*",
    re.DOTALL,
)
"""What is a command among the words in code style."""
IN_CHECKOUT = re.compile(r"(\./)?((eval|configs|graphs|docs|tests)/.*|generate_graph\.py|constraints\.txt)")
PLACEHOLDER = re.compile(r"[A-Z_]+(\.yaml)?")
OPERATORS = set("();<>|&")


@dataclass(frozen=True)
class Command:
    """One command: up to a pipe, a redirection or the end of its line."""

    place: str
    words: list[str]
    is_mention: bool
    """It stands in a sentence, maybe without its arguments."""
    says_checkout: bool
    """The page says that it needs a checkout."""

    @property
    def files(self) -> list[str]:
        """The files of a checkout that it names."""
        parts = (part for word in self.words for part in word.split("="))
        return [part for part in parts if IN_CHECKOUT.fullmatch(part)]

    @property
    def arguments(self) -> list[str]:
        """What stands behind `decentnode`, without what marks placeholders."""
        if "decentnode" not in self.words:
            return []
        words = self.words[self.words.index("decentnode") + 1 :]
        words = [word[1:] if word.startswith("[") else word for word in words]
        words = [word[:-1] if word.endswith("]") and "[" not in word else word for word in words]
        return ["1" if word in ("N", "K", "RANK") else word for word in words if word != "..."]

    @property
    def needs_checkout(self) -> bool:
        """Whether a wheel lacks what it names."""
        return bool(self.files) or self.arguments[:1] == ["bench"]


def commands(page: Path, name: str) -> Iterator[Command]:
    """The commands of a page, those of its blocks first."""
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    starts = [0, *(prose[: match.start()].count("\n") for match in re.finditer(r"^##+ ", prose, re.M))]
    lines = text.splitlines()
    ends = [*starts[1:], len(lines)]
    said = [bool(NEEDS_CHECKOUT.search("\n".join(lines[a:b]))) for a, b in zip(starts, ends, strict=True)]

    def found(number: int, line: str, is_mention: bool) -> Iterator[Command]:
        section = max(i for i, start in enumerate(starts) if start <= number)
        for words in split(line):
            command = Command(f"{name}:{number + 1}", words, is_mention, said[section] or said[0])
            if command.arguments or command.files:
                yield command

    for number, line in shell_lines(lines):
        yield from found(number, line, is_mention=False)
    for match in re.finditer("`([^`]+)`", prose):
        if MENTION.fullmatch(match[1]):
            yield from found(prose[: match.start()].count("\n"), match[1], is_mention=True)


def shell_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines of blocks that a shell reads, without documents inside of them; continued lines as one."""
    language, until, begun = None, "", ""
    for number, line in enumerate(lines):
        if line.startswith("```"):
            language = line[3:].split(" ")[0] if language is None else None
        elif until:
            until = "" if line == until else until
        elif language == "sh" or (language in ("", "text") and line.startswith("$ ")):
            begun += line.removeprefix("$ ")
            if begun.endswith("\\"):
                begun = begun[:-1]
                continue
            until = next(iter(re.findall(r"<<'(\w+)'", begun)), "")
            yield number, begun
            begun = ""


def split(line: str) -> Iterator[list[str]]:
    """The words of each command of a line."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    for is_operator, group in groupby(words, lambda word: set(word) <= OPERATORS):
        if not is_operator:
            yield list(group)


def problem(command: Command, is_checkout: bool) -> str | None:
    """What is wrong with a command in this installation, if anything."""
    if command.needs_checkout and not is_checkout:
        return None if command.says_checkout else "needs a checkout, and the page does not say so"
    if missing := [file for file in command.files if not Path(file).exists()]:
        return f"no such file: {', '.join(missing)}"
    if command.arguments[:1] == ["bench"]:
        benchmark = Path("eval", "benchmarks", f"{''.join(command.arguments[1:2])}.py")
        return script_problem(benchmark, command.arguments[2:]) if command.arguments[1:] else None
    if command.arguments:
        return decentnode_problem(command)
    scripts = [index for index, word in enumerate(command.words) if word.endswith(".py")]
    if not scripts:
        return None
    return script_problem(Path(command.words[scripts[0]]), command.words[scripts[0] + 1 :])


def script_problem(script: Path, words: Sequence[str]) -> str | None:
    """Options that a script does not name, nor what it shares with others of its folder."""
    if not script.is_file():
        return f"no such file: {script}"
    text = "".join(path.read_text() for path in (script, *script.parent.glob("_*.py")))
    options = {word.split("=")[0] for word in words if word.startswith("--")} - {"--help"}
    known = set(re.findall(r'"(?:--)?([\w-]+)"', text))
    return ", ".join(f"unknown option {o}" for o in sorted(options) if o[2:] not in known) or None


@cache
def command_group() -> Any:
    import typer

    from decentnode.cli.app import app

    return typer.main.get_command(app)


def decentnode_problem(command: Command) -> str | None:
    """What the command line refuses, before anything starts."""
    from decentnode.cli.exit import USAGE_ERROR
    from decentnode.errors import BadInput

    words = [word for word in command.arguments if word not in ("--help", "-h", "--debug")]
    if not words or words[0].startswith("--"):
        return None  # acts at once: --version, --install-completion
    group = command_group()
    outer = group.context_class(group, info_name="decentnode")
    try:
        name, inner, rest = group.resolve_command(outer, words)
        parsed = inner.make_context(name, rest, parent=outer)
        return meaning_problem(inner, parsed.params)
    except (USAGE_ERROR, BadInput) as error:
        may_be_short = command.is_mention or "--help" in command.words
        return None if may_be_short and type(error).__name__ == "MissingParameter" else str(error)


def meaning_problem(command: Any, given: dict[str, Any]) -> str | None:
    """What does not resolve: names of configurations, studies, graphs and plug-ins, and overrides."""
    from decentnode.cli.graph import is_config
    from decentnode.cli.list_plugins import plugin_lines
    from decentnode.config.shipped import config_path, find_graph
    from decentnode.core.registry import GRAPHS

    if command.name == "list":
        word, name = given["word"], given["name"]
        if word not in ("config", "configs") and not any(map(is_placeholder, (word, name))):
            list(plugin_lines(word, name, given["options"]))
        return None
    kinds = {parameter.metavar: parameter.name for parameter in command.params}
    kind = next((k for k in ("CONFIG", "STUDY", "FILE|NAME|CONFIG", "NAME") if k in kinds), None)
    value = given[kinds[kind]] if kind else None
    if kind is None or value is None or is_placeholder(value) or command.name not in CHECKED:
        return None
    text = str(value)
    if kind == "FILE|NAME|CONFIG" and not is_config(text):
        is_known = text in GRAPHS.classes() or find_graph(text) or "." in text or ":" in text
        return None if is_known else f"no graph {text}"
    path = config_path(text)
    if not path.is_file():
        is_own = path.suffix or text.startswith("runs/")
        return None if is_own else f"no configuration {text}"
    changes = [*filter(is_complete, given.get("overrides") or given.get("options") or ())]
    if kind == "STUDY":
        from decentnode.studies.study_file import read_study

        read_study(path, changes)
        return None
    from decentnode.config import extends
    from decentnode.config.loader import understand

    understand(extends.read(path), changes)
    return None


CHECKED = {
    "run", "validate", "calibrate", "commands", "keys", "graph", "peer-sampler", "privacy", "partition",
    "tune", "doctor", "sweep", "frontier",
}  # fmt: skip
"""Commands whose first argument names what is shipped."""


def is_placeholder(word: object) -> bool:
    return bool(PLACEHOLDER.fullmatch(str(word)))


def is_complete(change: str) -> bool:
    """Whether an override names no code or run of the reader's, and leaves nothing out."""
    return not re.search(r'\.\.\.|=\w+:\w+$|"\w+:\w+"|: runs/', change)


def problems(commands: Iterable[Command], is_checkout: bool) -> list[str]:
    """What is wrong with each that cannot be run, with its place."""
    judged = ((command, problem(command, is_checkout)) for command in commands)
    return [f"{command.place} {' '.join(command.words)}: {said}" for command, said in judged if said]


if __name__ == "__main__":
    given = [Command(**values) for values in json.load(sys.stdin)]
    print(json.dumps(problems(given, is_checkout=False)))
