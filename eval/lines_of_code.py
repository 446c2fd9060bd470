"""Counts the lines of code of decentnode/, by layer, and of tests/; no blank lines, comments and docstrings.

    python eval/lines_of_code.py [REVISION]

With a revision of git, its lines stand beside those of the working tree. A line counts if a token of
Python lies on it that is no comment and no docstring, so a text over three lines counts three times.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("decentnode", "tests")
AROUND = ("attacks", "decent_dp", "interop", "parallel", "results", "studies")
"""The packages of the layer around a run; all others but `contrib` are the core."""
LAYERS = ("core", "around a run", "contrib")
WITHOUT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Returns how many lines of a module have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _lines_of_docstrings(ast.parse(source)))


def _lines_of_docstrings(module: ast.Module) -> set[int]:
    """Returns the lines of all texts that stand as statements, below attributes too."""
    texts = (node for node in ast.walk(module) if isinstance(node, ast.Expr))
    return {
        line
        for node in texts
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def lines_by_package(sources: dict[PurePosixPath, str]) -> Counter[str]:
    """Returns the lines of each folder just below decentnode/ and tests/; other modules count for those."""
    lines: Counter[str] = Counter()
    for path, source in sources.items():
        lines["/".join(path.parts[: min(2, len(path.parts) - 1)])] += lines_of_code(source)
    return lines


def layer_of(package: str) -> str:
    """Returns the layer of a package such as `decentnode/graph`."""
    name = package.partition("/")[2]
    return "contrib" if name == "contrib" else "around a run" if name in AROUND else "core"


def sources_of_tree() -> dict[PurePosixPath, str]:
    """Returns the modules as they lie in the working tree."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {PurePosixPath(path.relative_to(ROOT).as_posix()): path.read_text() for path in paths}


def sources_of_revision(revision: str) -> dict[PurePosixPath, str]:
    """Returns the modules as a revision of git has them."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", revision, *FOLDERS], cwd=ROOT, check=True, capture_output=True
    )
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None and member.name.endswith(".py"):
                sources[PurePosixPath(member.name)] = content.read().decode()
    return sources


def table(now: Counter[str], before: Counter[str] | None) -> list[str]:
    """Returns a line for each package, below the sums of its folder and of its layer."""
    lines = []
    for folder in FOLDERS:
        packages = sorted(name for name in now | (before or Counter()) if name.split("/")[0] == folder)
        rows = [(folder, packages)]
        for layer in LAYERS if folder == "decentnode" else ("",):
            of_layer = [name for name in packages if not layer or layer_of(name) == layer]
            rows += [(f"  {layer}", of_layer)] * bool(layer)
            rows += [(f"    {name.partition('/')[2] or '(modules)'}", [name]) for name in of_layer]
        for title, names in rows:
            count = sum(now[name] for name in names)
            line = f"{title:24}{count:9,}"
            if before is not None:
                former = sum(before[name] for name in names)
                line += f"{former:11,}{count - former:+11,}"
            lines.append(line)
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision", nargs="?", help="a revision of git to compare with")
    revision = parser.parse_args().revision
    before = lines_by_package(sources_of_revision(revision)) if revision else None
    print(f"{'':24}{'now':>9}" + (f"{revision[:10]:>11}{'change':>11}" if revision else ""))
    print(*table(lines_by_package(sources_of_tree()), before), sep="\n")


if __name__ == "__main__":
    main()
