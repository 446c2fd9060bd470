"""Opens a report in a real browser: what a screen reader gets, sorting, switching, no error and no request.

    python eval/studies/report.py [STUDY|RUN...] [--tree FILE.txt] [--picture FILE.png]

Without runs it makes two variants with two seeds of digits. Needs Chromium: apt install chromium. `--tree`
writes the tree that the browser gives to a screen reader.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT = 300.0
QUICK = ("rounds=6", "evaluation.every=2", "evaluation.figures=false", "graph={name: ring, nodes: 4}")
SILENT = {"none", "generic", "InlineTextBox"}
"""Roles that a screen reader does not mention."""
TOLD_APART = {"table", "figure", "image", "searchbox", "DisclosureTriangle"}
"""Roles whose parts must have a name each."""
NAMED = TOLD_APART | {"columnheader", "rowheader", "button", "checkbox", "heading"}
"""Roles that are nothing without a name."""
SORTED = """
[...document.querySelectorAll("table.sortable")].flatMap((table) =>
  [...table.tHead.rows[0].cells].flatMap((heading, column) => [1, -1].map((sign) => {
    heading.querySelector("button").click();
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value);
    const values = cells.filter((value) => value !== undefined).map((value) => sign * Number(value));
    const isSorted = values.every((value, place) => place === 0 || values[place - 1] <= value);
    const order = sign > 0 ? "ascending" : "descending";
    return isSorted && heading.ariaSort === order ? "" : `column ${heading.textContent}: not ${order}`;
  }))).filter(Boolean)
"""
"""Clicks every heading twice: the values must rise, then fall."""
SWITCHED = """
[...document.querySelectorAll(".switch button")].map((button) => {
  button.click();
  const shown = [...document.querySelectorAll("figure[data-metric]")].filter((figure) => !figure.hidden);
  const isRight = shown.length > 0 && shown.every((figure) => figure.dataset.metric === button.dataset.value);
  return isRight && button.ariaPressed === "true" ? "" : `button ${button.textContent}: shows other curves`;
}).filter(Boolean)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--tree", type=Path, help="where the tree of a screen reader goes")
    parser.add_argument("--picture", type=Path, help="where a picture of the page goes")
    chosen = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{sys.argv[0]}: needs a browser; run: apt install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        runs, page = chosen.runs or make_runs(Path(folder)), Path(folder) / "report.html"
        call("report", *map(str, runs), "--out", str(page))
        with Browser(browser, Path(folder) / "profile") as opened:
            opened.open(page.as_uri())
            lines = [*tree(opened.ask("Accessibility.getFullAXTree")["nodes"])]
            if chosen.tree:
                shown = (f"{'  ' * depth}{role} {name}\n" for depth, role, name in lines)
                chosen.tree.write_text("".join(shown))
            if chosen.picture:
                shot = opened.ask("Page.captureScreenshot", captureBeyondViewport=True)
                chosen.picture.write_bytes(base64.b64decode(shot["data"]))
            defects = [*nameless(lines), *opened.value(SORTED), *opened.value(SWITCHED)]
            defects += [*foreign(opened.events, page.as_uri())]
    print("\n".join(defects) or f"{len(lines)} parts have names; it sorts and switches; no error, no request")
    return 1 if defects else 0


def make_runs(folder: Path) -> list[Path]:
    """Two variants with two seeds each."""
    for scheme in ("gossip", "none"):
        for seed in (0, 1):
            run_dir = f"run_dir={folder / scheme / f'seed-{seed}'}"
            call("run", "quickstart", run_dir, f"seed={seed}", f"sharing={scheme}", *QUICK)
    return [folder / "gossip", folder / "none"]


def call(*words: str) -> None:
    command = [sys.executable, "-m", "decentnode", *words]
    subprocess.run(command, check=True, timeout=LIMIT, capture_output=True)


class Browser:
    """Chromium without a window, asked over a pair of pipes in its own protocol."""

    def __init__(self, program: str, profile: Path) -> None:
        inward, self._out = os.pipe()
        self._in, outward = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"]
        command = [program, *words, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        script = f'exec "$@" 3<&{inward} 4>&{outward}'
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", *command], pass_fds=(inward, outward), stderr=subprocess.DEVNULL
        )
        os.close(inward)
        os.close(outward)
        self.events: list[dict[str, Any]] = []
        self._asked, self._rest, self._session = 0, b"", ""

    def __enter__(self) -> "Browser":
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT)

    def open(self, address: str) -> None:
        self.ask("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer; what happens meanwhile is in `events`."""
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._asked:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def value(self, script: str) -> Any:
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"]["value"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            self._rest += os.read(self._in, 1 << 16)
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


def tree(nodes: list[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
    """Depth, role and name of each part that a screen reader mentions, in its order."""
    by_id = {node["nodeId"]: node for node in nodes}

    def below(node: dict[str, Any], depth: int) -> Iterator[tuple[int, str, str]]:
        role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
        is_said = not node["ignored"] and role not in SILENT
        if is_said:
            yield depth, role, name
        for child in node.get("childIds", ()):
            if child in by_id:
                yield from below(by_id[child], depth + is_said)

    return below(nodes[0], 0)


def nameless(lines: list[tuple[int, str, str]]) -> Iterator[str]:
    """Parts without a name, or with that of another part of their kind."""
    yield from (f"{role} without a name" for _, role, name in lines if role in NAMED and not name)
    parts = [(role, name) for _, role, name in lines if role in TOLD_APART]
    shared = {part for part in parts if parts.count(part) > 1}
    yield from (f"{role}: two have the name {name}" for role, name in shared)
    if not {"main", "table", "figure", "image"} <= {role for _, role, _ in lines}:
        yield "no main part, table, figure or image"


def foreign(events: list[dict[str, Any]], address: str) -> Iterator[str]:
    """Errors, and every address that the browser asked for but the page and what is inside of it."""
    for event in events:
        method, values = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            url = values["request"]["url"]
            if url != address and not url.startswith("data:"):
                yield f"asked for {url[:100]}"
        elif method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            yield f"console: {values}"


if __name__ == "__main__":
    sys.exit(main())
