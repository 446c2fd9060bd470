"""The report of a study: its page without a browser, its tables, and the files for a paper."""

import csv
import json
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
import yaml
from matplotlib.colors import to_rgb

from decentnode.errors import BadInput
from decentnode.formats.metrics import ACCURACY
from decentnode.formats.partition_table import PartitionTable
from decentnode.results import Study
from decentnode.results.bands import distance_band, metric_band
from decentnode.results.figures.plots_study import study_figure
from decentnode.results.figures.style import PAPER, STYLES, chosen_style, drawing, write_all
from decentnode.results.run import RunEntry
from decentnode.results.study_curves import figures_of
from decentnode.results.styles import PALETTE, style_at
from decentnode.studies.report import command, tables
from decentnode.studies.report.page import page, page_content
from tests.results.test_study import make_run, recorded

ODD = "<b>&top_k"


class Page(HTMLParser):
    """What a page loads, its tables, and its figures with their descriptions."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.figures: dict[str, str] = {}
        self.ids: list[str] = []
        self.values: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        loaded = [named[name] for name in ("src", "href", "data", "action") if named.get(name)]
        # Parts of a drawing name each other.
        self.loaded += [place for place in loaded if not place.startswith("#")]
        self.ids += [named["id"]] if "id" in named else []
        if tag == "figure":
            self.figures[named["id"]] = ""
        elif named.get("role") == "img":
            self.figures[[*self.figures][-1]] = named["aria-label"]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.values += [named["data-value"]] if "data-value" in named else []
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("td", "th", "code", "button") and self.tables and self.tables[-1]:
            self.tables[-1][-1][-1] += data


@pytest.fixture
def directory(tmp_path) -> Path:
    """Two variants with three seeds, one with a name that HTML must escape, and a run in progress."""
    folder = tmp_path / "trial"
    for seed, gain in enumerate((0.0, 0.02, 0.04)):
        for name, variant, sent, last in (("odd", ODD, 1000, 0.8), ("gossip", "gossip", 1500, 0.9)):
            make_run(
                folder / name / f"seed-{seed}", [(0.5, 0.5), (0.6, 0.7), (last + gain, last + gain)], seed,
                variant, sent, entry=recorded(variant, seed, alone=variant == ODD),
            )  # fmt: skip
    make_run(folder / "odd" / "seed-3", [(0.1, 0.1)], 3, ODD, done=False, entry=recorded(ODD, 3))
    return folder


def test_a_page_holds_everything_and_loads_nothing(directory):
    text = page(Study(directory))
    parsed = Page(text)
    assert parsed.loaded == ["data:,"]
    main, differences, runs = (t for t in parsed.tables if t[0][0] in ("variant", "pair") and len(t[0]) > 4)
    assert main[0][:3] == ["variant", "seeds", "accuracy (%) at the end"]
    rows = {row[0]: row for row in main[1:]}
    assert rows["gossip"][1] == "3" and "Runs that have not finished do not count: 1 incomplete." in text
    assert rows[ODD][1:4] == ["3 of 4", "82.00 ± 4.97", "82.00 ± 4.97"]
    assert rows["gossip"][7] == "(3.0 s)", "its seconds are of a shared machine"
    assert differences[1][:4] == [f"gossip - {ODD}", "3", "10.00 ± 0.00", "2"]
    assert [row[:4] for row in runs[1:] if row[2] != "finished"] == [[ODD, "3", "incomplete", "10"]]
    curves = {
        f"{metric}_{axis}" for metric in ("accuracy", "loss") for axis in ("rounds", "bytes", "seconds")
    }
    assert parsed.figures.keys() == curves | {"consensus_distance", "spread", "graph"}
    assert len(parsed.ids) == len(set(parsed.ids)), "figures share no ids"
    said = parsed.figures["accuracy_bytes"]
    assert said.startswith("Test accuracy against bytes sent, mean over nodes and seeds: at the end")
    assert f"{ODD} 82" in said and "gossip 92" in said and said.endswith("1 run in progress.")
    values = next(t for t in parsed.tables if t[0][0] == "round")
    assert values[0] == ["round", "gossip", ODD] and values[3] == ["30", "92 ± 4.97", "82 ± 4.97"]
    assert "do not compare" in text and ">nan" not in text.lower() and "<b>" not in text
    assert len(text) < 600_000
    assert "https://" not in text and "#222222" not in text, "figures have the colors of the page"


class ScreenReader(HTMLParser):
    """What a screen reader says of a page: its language, headings, and the names of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.language, self.mains = "", 0
        self.headings: list[str] = []
        self.names: list[tuple[str, str]] = []
        """Kind and name of what must be told apart."""
        self.wrong: list[str] = []
        self.feed(text)
        self.texts = dict(re.findall(r'id="([^"]+)">([^<]*)<', text))

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.language = named.get("lang", self.language)
        self.mains += tag == "main"
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)
        elif tag in ("table", "input", "summary") or named.get("role") == "img":
            self.names += [(named.get("role", tag), named["aria-label"])] if "aria-label" in named else []
            self.wrong += [tag] if "aria-label" not in named and tag == "table" else []
        elif tag == "figure":
            self.names.append((tag, named["aria-labelledby"]))
        elif tag == "th":
            self.wrong += [tag] if named.get("scope") not in ("col", "row") else []
        elif tag == "svg":
            self.wrong += [tag] if named.get("aria-hidden") != "true" else []


def test_a_screen_reader_tells_the_parts_of_a_page_apart(directory):
    said = ScreenReader(page(Study(directory)))
    assert (said.language, said.mains, said.wrong) == ("en", 1, [])
    assert said.headings[0] == "h1" and {*said.headings[1:]} == {"h2"} and len(said.headings) >= 6
    names = [(kind, said.texts.get(name, name)) for kind, name in said.names]
    counted = Counter(kind for kind, _ in names)
    # The graph of this study is not drawn: a note says why.
    assert counted == {"figure": 9, "img": 8, "table": 11, "input": 3, "summary": 8}
    assert len(names) == len(set(names)), "no two of a kind have one name"
    assert all(
        " " in name for kind, name in names if kind in ("figure", "summary", "input") and name != "Graph"
    )
    pictures = [name for kind, name in names if kind == "img"]
    assert all(any(sign.isdigit() for sign in name) for name in pictures), "they tell values"


def test_no_plugin_of_a_run_is_imported_for_its_page(tmp_path, monkeypatch):
    run = make_run(tmp_path / "received", [(0.5, 0.5)])
    (run / "graph_of_a_stranger.py").write_text("raise SystemExit('code of the run')")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    own = settings | {"graph": {"name": "graph_of_a_stranger:Graph"}, "model": "graph_of_a_stranger:Net"}
    (run / "config.yaml").write_text(json.dumps(own))
    monkeypatch.chdir(run)
    text = page(Study(run))
    assert "Not drawn: " in text and "&#39;graph_of_a_stranger:Graph&#39; is a plug-in" in text
    assert str(run) not in sys.path and "graph_of_a_stranger" not in sys.modules
    # Of a graph that comes with decentnode no other section matters.
    (run / "config.yaml").write_text(json.dumps(own | {"graph": {"name": "ring", "nodes": 3}}))
    assert Page(page(Study(run))).figures["graph"] == "3 nodes and 3 edges."


def test_a_study_that_has_just_begun_has_a_page(tmp_path):
    make_run(tmp_path / "only", [], done=False)
    content = page_content(Study(tmp_path), float("nan"))
    assert [run["state"] for run in content["runs"]] == ["incomplete"]
    parsed = Page(page(Study(tmp_path)))
    assert parsed.tables[-1][1][2] == "incomplete" and parsed.figures.keys() == {"graph"}


def test_of_many_nodes_the_page_says_over_how_many_a_mean_is_and_stays_small(tmp_path):
    make_run(tmp_path / "only", [(0.5, 0.7)])
    path = tmp_path / "only/evaluations.jsonl"
    row = msgspec.json.decode(path.read_bytes())
    row["bytes_sent"] = {str(rank): 1000 for rank in range(3000)}
    path.write_bytes(msgspec.json.encode(row) + b"\n")
    table = PartitionTable([3] * 3000, [[0, 3], [2, 1]] * 1500)
    (tmp_path / "only/partition.json").write_bytes(msgspec.json.encode(table.content))
    content = page_content(Study(tmp_path), 60.0)
    assert "The value of a run is the mean over 2 of 3,000 nodes." in content["tables"][0]["notes"]
    text = page(Study(tmp_path))
    assert (
        Page(text).figures["partition"] == "Training samples of 3,000 nodes, from 3 to 3 each, by 2 labels."
    )
    assert len(text) < 400_000


def test_an_interval_of_an_accuracy_ends_at_0_and_100_percent(tmp_path):
    for seed, (first, last) in enumerate(((0.0, 0.9), (0.1, 1.0))):
        make_run(tmp_path / f"seed-{seed}", [(first, first), (last, last)], seed)
    band = metric_band(Study(tmp_path).variants[0].finished, ACCURACY)
    assert (band.low[0], band.high[1]) == (0.0, 100.0)
    assert band.mean == pytest.approx([5.0, 95.0]) and band.high[0] > 50 > 47 > band.low[1]


def test_the_page_fits_its_reader(directory):
    """A dark system, paper, a narrow screen, and long tables; how it looks is for eyes."""
    text = page(Study(directory))
    for part in ("prefers-color-scheme: dark", "@media print", "@media (max-width: 700px)", "beforeprint"):
        assert part in text
    assert text.count('class="filter"') == text.count('class="sortable"') == 3


def test_bands_are_those_of_the_rounds_that_all_seeds_have(directory):
    make_run(directory / "odd" / "seed-9", [(0.5, 0.5)], 9, ODD, entry=recorded(ODD, 9))
    variant = next(v for v in Study(directory).variants if v.name == ODD)
    assert metric_band(variant.finished, ACCURACY).rounds == [10] and len(variant.finished) == 4
    gossip = next(v for v in Study(directory).variants if v.name == "gossip")
    band = distance_band(gossip.finished)
    assert band.mean == pytest.approx([0.125] * 3) and band.low == pytest.approx([0.125] * 3)


def test_tables_for_papers_say_the_same_in_three_formats(directory):
    study = Study(directory)
    table = tables.main_table(study, 70.0)
    markdown, latex = tables.as_markdown(table), tables.as_latex(table)
    assert r"| 82.00 ± 4.97 |" in markdown and markdown.startswith("| variant | seeds |")
    assert r"$<$b$>$\&top\_k & 3 of 4 & 82.00 $\pm$ 4.97" in latex and r"accuracy (\%)" in latex
    rows = list(csv.DictReader(tables.as_csv(table).splitlines()))
    ours = next(row for row in rows if row["variant"] == ODD)
    assert float(ours["accuracy (%) at the end"]) == pytest.approx(82.0)
    assert float(ours["accuracy (%) at the end ±"]) == pytest.approx(4.302652729911275 * 2 / 3**0.5)
    # 65 % at 4000 bytes and 80 to 84 % at 6000.
    expected = sum(4000 + 2000 * 5 / (15 + gain) for gain in (0, 2, 4)) / 3
    assert float(ours["bytes to 70 %"]) == pytest.approx(expected)


def test_the_command_writes_page_and_paper(directory, tmp_path, call):
    paper = tmp_path / "paper"
    code, output, _ = call("report", directory, "--paper", paper)
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == f"{directory / 'odd' / 'seed-3'}: incomplete, so it does not count"
    assert lines[1] == f"7 runs of 2 variants: {directory / 'report.html'}"
    names = {path.name for path in paper.iterdir()}
    assert {"results.tex", "results.md", "results.csv", "differences.tex", "accuracy_bytes.pdf"} <= names
    assert "accuracy_seconds.pdf" not in names, "runs shared the machine"
    drawn = {curves.name: curves for curves in figures_of(Study(directory).variants)}
    with drawing(PAPER):
        write_all(study_figure(drawn["loss_rounds"], PAPER), tmp_path / "again", PAPER.formats)
    for ending in ("svg", "pdf"):
        first, again = paper / f"loss_rounds.{ending}", tmp_path / f"again.{ending}"
        assert first.read_bytes() == again.read_bytes(), "the same data give the same file"
    look = ("--style", "two_columns", "--font", "Times:9", "--label", "gossip=Gossip SGD", "--format", "svg")
    assert call("report", directory, "--paper", tmp_path / "wide", *look)[0] == 0
    wide = (tmp_path / "wide/accuracy_rounds.svg").read_text()
    assert 'width="496.8pt"' in wide and ">Gossip SGD<" in wide and "9px" in wide, "6.9 inches"
    assert "DejaVu" not in wide and not list((tmp_path / "wide").glob("*.pdf"))


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"name": "papr"}, "--style: unknown style 'papr'; did you mean 'paper'?"),
        ({"font": "Tymes"}, "--font: 'Tymes' is not installed"),
        ({"font": "Times:100"}, "--font: 'Times:100': the size must be points from 4 to 40, such as Times:8"),
        ({"size": "3x"}, "--size: '3x': must be width x height in inches, such as 3.35x2.1"),
        ({"labels": ["gossip"]}, "--label: 'gossip': must be name=text, such as gossip='Gossip SGD'"),
        ({"formats": "pdf,jpg"}, "--format: unknown format 'jpg'"),
    ],
)
def test_a_style_that_does_not_exist_is_refused_in_one_line(option, line):
    with pytest.raises(BadInput) as caught:
        chosen_style(**option)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    assert chosen_style("ggplot").parameters["axes.facecolor"] == "#E5E5E5" and STYLES["paper"] is PAPER


def test_a_run_that_was_repeated_or_has_no_evaluation_is_reported(tmp_path):
    first, again = (make_run(tmp_path / name, [(0.5, 0.5)]) for name in ("a", "b"))
    lines = list(command.report([first, again], tmp_path / "page.html", None, None))
    words = f"{again}: same settings and seed as {first}, and both count as seeds"
    assert lines == [words, f"2 runs of 1 variant: {tmp_path / 'page.html'}"]
    (again / "evaluations.jsonl").unlink()
    lines = list(command.report([first, again], tmp_path / "page.html", None, None))
    assert lines[0] == f"{again}: finished without an evaluation, so it does not count" and len(lines) == 2


def test_curves_of_many_variants_are_distinguished_without_color():
    styles = [style_at(place) for place in range(12)]
    assert len({(s.dash, s.marker) for s in styles}) == 12
    assert len({style.color for style in styles[:8]}) == len({style.marker for style in styles[:8]}) == 8
    # On white, also in gray: the weights of ITU-R BT.601.
    grays = [
        sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(color), strict=True)) for color in PALETTE
    ]
    assert max(grays) < 0.75


def test_figures_of_many_variants_are_divided_by_an_axis(tmp_path):
    schemes = ("gossip", "choco", "jwins", "top_k", "random_k")
    for part in ("iid", "two_labels"):
        for scheme in schemes:
            entry = RunEntry(
                "trial", f"{part}_{scheme}", {"part": part, "scheme": scheme}, 0, False, 3.0, 2.0, 0
            )
            folder = tmp_path / entry.variant / "seed-0"
            make_run(folder, [(0.5, 0.5), (0.7, 0.7)], 0, f"{part}{scheme}", entry=entry)
    study = Study(tmp_path)
    figure_of = {curves.name: study_figure(curves, PAPER) for curves in figures_of(study.variants)}
    measures = [f"{metric}_{x}" for metric in ("accuracy", "loss") for x in ("rounds", "bytes", "seconds")]
    measures.append("consensus_distance")
    assert set(figure_of) == {f"{name}_{part}" for name in measures for part in ("iid", "two_labels")}
    drawn = [figure_of[f"accuracy_bytes_{part}"].axes[0].lines for part in ("iid", "two_labels")]
    looks = [{line.get_label(): (line.get_color(), line.get_marker()) for line in lines} for lines in drawn]
    assert looks[0] == looks[1] and set(looks[0]) == set(schemes)
    column = tables.narrow(tables.main_table(study, 60.0))
    assert column.headings == ["variant", "accuracy (%) at the end", "at 4.0 kB", "bytes to 60 %"]
    latex = tables.as_latex(column)
    assert r"\shortstack[r]{accuracy (\%)\\at the end} & at 4.0 kB & " in latex


def test_runs_of_which_none_has_finished_are_refused_in_one_line(tmp_path, call):
    run = make_run(tmp_path / "a", [], done=False)
    code, _, message = call("report", run, "--paper", tmp_path / "p")
    assert code == 2 and "no run has finished" in message and message.count("\n") == 1


def test_many_variants_without_axes_are_divided_by_their_results(tmp_path):
    for place in range(9):
        share = 0.5 + 0.05 * place
        make_run(tmp_path / f"run-{place}", [(share, share)], sharing=f"scheme{place}")
    study = Study(tmp_path)
    shown = {figure.name: [*figure.bands] for figure in figures_of(study.variants)}
    assert shown["accuracy_rounds_places_1_to_8"] == [f"scheme{8 - place}" for place in range(8)]
    assert shown["accuracy_rounds_places_9_to_9"] == ["scheme0"]
    parsed = Page(page(study))
    assert len(parsed.ids) == len(set(parsed.ids)) and not any(" " in name for name in parsed.figures)
