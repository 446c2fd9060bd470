"""Makes the pictures of docs/gallery.md: runs the commands of the page, and shrinks what they draw.

    python eval/gallery.py

A row of the page names a picture and the file that it is of. Needs Pillow; the page of a report is a
screenshot by Chromium, and stays as it is where there is none.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import ROOT, run_page, with_scripts
from PIL import Image

PAGE = "docs/gallery.md"
ROW = re.compile(r"^\| !\[[^\]]+\]\((?P<picture>[\w/]+\.png)\) \| `(?P<file>[^`]+)`", re.MULTILINE)
WIDTH, COLORS = 460, 48
WINDOW = (1000, 1500)
"""The part of a page in a screenshot, in pixels."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="that one block may take")
    options = parser.parse_args()
    rows = [row.groupdict() for row in ROW.finditer((ROOT / PAGE).read_text())]
    with tempfile.TemporaryDirectory(prefix="gallery-") as name:
        folder, scripts = Path(name), with_scripts(Path(name) / "bin")
        environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        options.wheel = False
        failed = run_page(PAGE, folder, environment, options)
        for row in rows:
            source = folder / row["file"]
            if source.suffix == ".html" and not (source := screenshot(source)).exists():
                print(f"{row['picture']} stays: no Chromium")
            elif source.exists():
                shrink(source, ROOT / "docs" / row["picture"])
    return int(failed > 0)


def screenshot(page: Path) -> Path:
    """A picture of the upper part of a page; the file does not exist where nothing can make it."""
    picture = page.with_suffix(".png")
    if browser := shutil.which("chromium") or shutil.which("google-chrome"):
        size = f"--window-size={WINDOW[0]},{WINDOW[1]}"
        words = ["--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={picture}"]
        subprocess.run([browser, *words, page.as_uri()], check=True, capture_output=True, timeout=100)
    return picture


def shrink(source: Path, picture: Path) -> None:
    with Image.open(source) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
    picture.parent.mkdir(parents=True, exist_ok=True)
    # Another method gives lines and small signs, which have few pixels, the colors of others.
    few = small.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)
    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
