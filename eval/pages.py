"""Runs the commands that pages show, each page in a folder of its own, with this checkout or with its wheel.

    python eval/pages.py [PAGE...] [--wheel] [--seconds 300]

Blocks marked `norun` are left out: they need a network, other machines, hours, or what a reader has. With
`--wheel` the package is a wheel in an empty folder, without the checkout; commands that need one are left out
(the tests check that their pages say so). Prints a line for each block, and ends with 1 where one failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.page_commands import commands  # noqa: E402
from tests.support.pages import blocks, write_files  # noqa: E402

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="such as docs/tutorial.md; default: all")
    parser.add_argument("--wheel", action="store_true", help="without the checkout")
    parser.add_argument("--seconds", type=float, default=300.0, help="that one block may take")
    options = parser.parse_args()
    pages = options.pages or [
        "README.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    ]
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        package = installed_wheel(Path(folder)) if options.wheel else ROOT
        scripts = with_scripts(Path(folder) / "bin")
        environment = os.environ | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYTHON": str(scripts / "python"),
            "PYTHONPATH": str(package),
        }
        failed = 0
        for number, page in enumerate(pages):
            place = Path(folder) / f"page-{number}"
            if options.wheel:
                place.mkdir()
            else:
                shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".git", ".venv", "build", "runs"))
                environment["PYTHONPATH"] = str(place)
            failed += run_page(page, place, environment, options)
            shutil.rmtree(place)
    print(f"{failed} blocks failed")
    return int(failed > 0)


def installed_wheel(folder: Path) -> Path:
    """Where the wheel of this checkout is installed, without what it depends on."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True
    )
    site, (wheel,) = folder / "site", folder.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        site,
        wheel,
    ]
    subprocess.run(install, check=True)
    return site


def with_scripts(folder: Path) -> Path:
    """A folder with `python` and `decentnode`, which use the package on PYTHONPATH."""
    folder.mkdir()
    for name, words in {"python": "", "decentnode": "-P -m decentnode"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def run_page(page: str, folder: Path, environment: dict[str, str], options: argparse.Namespace) -> int:
    """Runs the blocks of a page in order; returns how many failed."""
    text = (ROOT / page).read_text()
    write_files(folder, page)
    if page == "README.md":
        (folder / "my_scheme.py").write_text(blocks(page, "python")[-1])
    shown = [
        (command, int(command.place.removeprefix(":")))
        for command in commands(ROOT / page, "")
        if not command.is_mention
    ]
    left_out = {line for command, line in shown if options.wheel and command.needs_checkout}
    failed = 0
    for block in BLOCK.finditer(text):
        first = text[: block.start()].count("\n") + 2
        lines = [line for number, line in enumerate(block[1].splitlines(), first) if number not in left_out]
        if lines:
            failed += not run_block(f"{page}:{first}", "\n".join(lines), folder, environment, options.seconds)
    return failed


def run_block(place: str, lines: str, folder: Path, environment: dict[str, str], limit: float) -> bool:
    began = time.monotonic()
    try:
        shell = ["bash", "-euo", "pipefail", "-c", lines]
        ended = subprocess.run(
            shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit
        )
        said = "" if ended.returncode == 0 else f"exit code {ended.returncode}: {ended.stderr.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        said = f"was not done after {limit:.0f} s"
    print(f"{place:<36} {time.monotonic() - began:6.1f} s  {said or 'ok'}", flush=True)
    return not said


if __name__ == "__main__":
    sys.exit(main())
