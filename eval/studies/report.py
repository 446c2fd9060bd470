"""Opens a report in a real browser: tables, sorting, switching, no error and no request to anywhere.

    python eval/studies/report.py [STUDY|RUN...] [--picture FILE.png]

Without runs it makes two variants with two seeds of digits. Needs Debian's packages chromium and
chromium-driver, and selenium: pip install selenium. Where one is missing it fails.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs a package; run: pip install selenium", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
QUICK = ("rounds=6", "evaluation.every=2", "evaluation.figures=false", "graph={name: ring, nodes: 4}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--picture", type=Path, help="where a picture of the page goes")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        runs, page = chosen.runs or make_runs(Path(folder)), Path(folder) / "report.html"
        call("report", *map(str, runs), "--out", str(page))
        defects = examine(page, chosen.picture)
    print("\n".join(defects) or "the page shows, sorts and switches; no error, no request")
    return 1 if defects else 0


def make_runs(folder: Path) -> list[Path]:
    """Two variants with two seeds each."""
    for scheme in ("gossip", "none"):
        for seed in (0, 1):
            run_dir = f"run_dir={folder / scheme / f'seed-{seed}'}"
            call("run", "configs/quickstart.yaml", run_dir, f"seed={seed}", f"sharing={scheme}", *QUICK)
    return [folder]


def call(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "decentnode", *words], cwd=ROOT, check=True, timeout=LIMIT, capture_output=True
    )


def examine(page: Path, picture: Path | None) -> list[str]:
    """What is wrong with the page, in lines."""
    driver = shutil.which("chromedriver")
    if driver is None:
        return ["no chromedriver: apt install chromium chromium-driver"]
    browser = webdriver.Chrome(options=settings(), service=webdriver.ChromeService(driver))
    try:
        browser.set_page_load_timeout(LIMIT)
        browser.get(page.as_uri())
        wait = WebDriverWait(browser, 30)
        wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, "#curves .main-svg"))
        defects = [*sorting(browser), *switching(browser), *drawn(browser)]
        if picture:
            height = browser.execute_script("return document.body.scrollHeight")
            browser.set_window_size(1200, height + 100)
            browser.save_screenshot(str(picture))
        errors = [entry["message"] for entry in browser.get_log("browser")]
        return [*defects, *(f"console: {error}" for error in errors), *requests(browser, page)]
    finally:
        browser.quit()


def settings() -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return options


def sorting(browser: webdriver.Chrome) -> list[str]:
    """Clicks every heading of the first table twice: the values must rise, then fall."""
    defects = []
    table = browser.find_element(By.CSS_SELECTOR, "table.sortable")
    for column, heading in enumerate(table.find_elements(By.TAG_NAME, "th")):
        for sign, order in ((1, "ascending"), (-1, "descending")):
            heading.click()
            cells = table.find_elements(By.CSS_SELECTOR, f"tbody td:nth-child({column + 1})")
            values = [cell.get_attribute("data-value") for cell in cells]
            numbers = [sign * float(value) for value in values if value is not None]
            texts = [cell.text for cell in cells]
            if numbers != sorted(numbers) or heading.get_attribute("aria-sort") != order:
                defects.append(f"column {heading.text}: not in {order} order: {texts}")
    return defects


def switching(browser: webdriver.Chrome) -> list[str]:
    """Clicks every button: the curves must change with it."""
    defects, seen = [], {titles(browser)}
    buttons = browser.find_elements(By.CSS_SELECTOR, ".switch button")
    for button in buttons:
        button.click()
        if "chosen" not in (button.get_attribute("class") or ""):
            defects.append(f"button {button.text}: is not chosen after a click")
        seen.add(titles(browser))
    if len(seen) < len(buttons) - 1:
        defects.append(f"{len(buttons)} buttons, but only {len(seen)} different charts: {sorted(seen)}")
    return defects


def titles(browser: webdriver.Chrome) -> tuple[str, ...]:
    places = browser.find_elements(By.CSS_SELECTOR, "#curves .xtitle, #curves .ytitle")
    return tuple(place.text for place in places)


def drawn(browser: webdriver.Chrome) -> list[str]:
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    empty = [c for c in charts if not c.find_elements(By.CSS_SELECTOR, ".main-svg")]
    return [f"{len(empty)} of {len(charts)} charts are empty"] if empty or len(charts) < 3 else []


def requests(browser: webdriver.Chrome, page: Path) -> list[str]:
    """Every address that the browser asked for, but the page itself and what is inside of it."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [f"asked for {url[:100]}" for url in sent if url != page.as_uri() and not url.startswith("data:")]


if __name__ == "__main__":
    sys.exit(main())
