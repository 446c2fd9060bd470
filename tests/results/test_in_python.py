"""Runs and studies as Python and notebooks see them: frames, models, figures, cards."""

import base64
import fcntl
import io
import json
import re
import sys
from html.parser import HTMLParser
from math import isnan

import msgspec
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

import decentnode
import decentnode.results
from decentnode.errors import BadInput
from decentnode.formats.reader import SCHEMA
from decentnode.formats.records import RoundRecord, write_atomically
from decentnode.formats.transcript import Transcript
from decentnode.node.recording.model_records import ModelRecords
from decentnode.results import Run, Study
from decentnode.results.attack_results import read_results
from decentnode.results.curves import read_runs
from decentnode.results.figures.plots import plot
from decentnode.results.run import read_entry
from decentnode.results.statistics import interval
from decentnode.results.study import read_variants
from tests.results.test_study import make_run, recorded

ODD = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The texts, pictures and tags of a piece of HTML, which must be well-formed."""

    VOID = ("img",)

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts, self.pictures, self.tags, self._open = [], [], set(), []
        self.feed(html)
        assert self._open == [], "every tag ends"

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            kind, encoded = dict(attrs)["src"].split(",", 1)
            assert kind == "data:image/png;base64"
            self.pictures.append(imread(io.BytesIO(base64.b64decode(encoded))))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_names_that_are_imported_when_needed_are_listed():
    for package in (decentnode, decentnode.results):
        assert dir(package) == sorted(package.__all__)
        assert all(getattr(package, name) is not None for name in dir(package))
    assert {"Run", "Study", "read_model"} <= set(dir(decentnode.results))


def test_records_of_all_nodes_are_one_frame(tmp_path, monkeypatch):
    path = make_run(tmp_path / "a", [(0.5, 0.7)], seed=3)
    (path / "records").mkdir()
    for rank in (0, 1):
        records = [
            RoundRecord(rank, 0, 0.5, 1.25, steps=4, exchange_seconds=0.1, sent_payload=100, lost=[7]),
            RoundRecord(rank, 1, 1, refused={"stale": 2, "size": 1}, metrics={"accuracy": 0.5, "loss": None}),
        ]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (path / "records" / f"{rank:05d}.jsonl").write_bytes(lines)
    frame = Run(str(path)).records
    assert list(zip(frame["rank"], frame["round"], strict=True)) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    first, second = frame.iloc[0], frame.iloc[1]
    assert (first["run"], first["seed"], first["train_loss"], first["steps"]) == ("trial", 3, 1.25, 4)
    names = ["exchange_seconds", "sent_payload", "lost", "refused"]
    assert [*first[names]] == [0.1, 100, 1, 0] and [*second[names]] == [0.0, 0, 0, 3]
    assert second["accuracy"] == 0.5
    assert isnan(first["accuracy"]) and isnan(second["loss"]) and isnan(second["train_loss"])
    assert frame["epsilon"].dtype == frame["memory_mb"].dtype == np.float64
    monkeypatch.setattr("decentnode.results.run.ROWS_PER_BLOCK", 1)
    assert Run(str(path)).records.equals(frame)
    both = Study(path, make_run(tmp_path / "b", [(0.5, 0.7)], sharing="choco")).records
    assert set(both["variant"]) == {"gossip"} and len(both) == 4
    nothing = Run(make_run(tmp_path / "c", []))
    assert len(nothing.records) == len(nothing.evaluations) == 0 and isnan(nothing.end)
    assert "accuracy" in nothing.records and "consensus_distance" in nothing.evaluations


@pytest.fixture
def kept(tmp_path):
    """A run of three nodes that keep models after rounds 2 and 4; rank 2 is lost before the last one."""
    path = make_run(tmp_path / "kept", [(0.5, 0.7)])
    modules = []
    for rank in range(3):
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        module.register_buffer("scale", torch.tensor([1.0 + rank], dtype=torch.bfloat16))
        module[1].num_batches_tracked += rank + 5
        models = ModelRecords(path, rank, module, lambda round: round % 2 == 1)
        for round in range(4 if rank < 2 else 3):
            with torch.no_grad():
                module[0].weight.fill_(10.0 * rank + round)
            models.after(round)
        assert models.close() == ""
        modules.append(module)
    summary = json.loads((path / "summary.json").read_text())
    write_atomically(path / "summary.json", summary | {"lost_nodes": {"2": "it died"}})
    return path, modules


def test_models_and_their_mean_are_those_of_a_round(kept):
    path, modules = kept
    run = Run(path)
    state = run.model(1)
    assert state.keys() == modules[1].state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in modules[1].state_dict().items())
    assert run.model(2)["0.weight"].unique().tolist() == [21.0], "the last one that is kept of it"
    assert run.model(1, round=2)["0.weight"].unique().tolist() == [11.0]

    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    network.register_buffer("scale", torch.zeros(1, dtype=torch.bfloat16))
    mean = run.mean_model(network=network)
    assert isinstance(mean, nn.Sequential) and mean is not network and not mean.training
    assert mean[0].weight.unique().tolist() == [(3 + 13) / 2], "of the nodes that were not lost"
    assert torch.allclose(mean[0].bias, (modules[0][0].bias + modules[1][0].bias) / 2)
    assert mean.scale.dtype == torch.bfloat16 and mean.scale.item() == 1.5
    assert mean[1].num_batches_tracked.item() == 5, "that of the first node"


PLUGIN = """
from torch import nn

class LazyNet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.words = nn.Embedding(7, 3)
        self.score = nn.LazyLinear(width)

    def forward(self, ids, features):
        return self.score(self.words(ids).mean(1) + features)
"""


def test_a_network_is_built_without_its_samples_and_from_the_copy_of_its_code(tmp_path, monkeypatch):
    path = make_run(tmp_path / "a", [])
    settings = {
        "name": "own", "graph": {"name": "file", "path": "/gone.edges"}, "dataset": "gone",
        "model": {"name": "lazy_network_of_a_run:LazyNet", "width": 5}, "training": {"dtype": "bfloat16"},
    }  # fmt: skip
    (path / "config.yaml").write_text(json.dumps(settings))
    (path / "code" / ("ab" * 6)).mkdir(parents=True)
    (path / "code" / ("ab" * 6) / "lazy_network_of_a_run.py").write_text(PLUGIN)
    arguments = [{"shape": [4], "ids": True}, {"shape": [3], "ids": False}]
    started = {
        "schema": SCHEMA, "samples": {"shape": [4], "num_classes": 5, "arguments": arguments},
        "code": [{"round": 0, "digest": "ab" * 32, "files": {"lazy_network_of_a_run.py": "cd" * 32}}],
    }  # fmt: skip
    write_atomically(path / "run.json", started)
    wanted = {"words.weight": torch.ones(7, 3), "score.weight": torch.ones(5, 3), "score.bias": torch.ones(5)}
    for rank in (0, 1):
        module = nn.ParameterDict()
        module.state_dict = lambda factor=1 + rank: {k: v.bfloat16() * factor for k, v in wanted.items()}
        records = ModelRecords(path, rank, module, lambda _: True)
        records.after(0)
        assert records.close() == ""
    # A reader runs no code of a run unless it is asked to.
    with pytest.raises(
        BadInput, match=r"'lazy_network_of_a_run:LazyNet' is a plug-in .*: with_its_code=True"
    ):
        Run(path).mean_model()
    assert "lazy_network_of_a_run" not in sys.modules and str(path) not in sys.path
    monkeypatch.setattr(sys, "path", [*sys.path])
    mean = Run(path).mean_model(with_its_code=True)
    assert type(mean).__name__ == "LazyNet" and type(mean.score) is nn.Linear
    assert all(torch.equal(value, 1.5 * wanted[name]) for name, value in mean.state_dict().items())
    assert mean.score.weight.dtype == torch.bfloat16


def test_models_that_are_not_there_are_refused_in_one_line(kept, tmp_path):
    path, _ = kept
    run, without = Run(path), Run(make_run(tmp_path / "none", []))
    other = nn.Linear(1, 1, bias=False)
    cases = {
        "keeps no model of rank 3; it has ranks 0 to 2": lambda: run.model(3),
        "keeps no model of rank 1 after round 3, but after 2 rounds: 2, 4; records.models.every in the "
        "configuration says which": lambda: run.model(1, 3),
        "keeps no model of all nodes after round 1, but after 2 rounds: 2, 4; records.models.every in the "
        "configuration says which": lambda: run.mean_model(1),
        "run.json: not written by this version of decentnode: 'samples'": run.mean_model,
        "the network does not take the models of this run: Error(s) in loading state_dict for Linear: "
        "Missing key(s) in state_dict: \"weight\"": lambda: run.mean_model(network=other),
        "keeps no models; run it with records.models: {every: 10} in its configuration, or with "
        "records.models: {} for those of the last round alone": without.mean_model,
    }  # fmt: skip
    for message, call in cases.items():
        with pytest.raises(BadInput) as refused:
            call()
        assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_plot_is_the_mean_with_its_spread_on_each_axis(tmp_path):
    run = Run(make_run(tmp_path / "a", [(0.5, 0.7), (0.8, 0.9)]))
    (axes,) = run.plot().axes
    assert axes.get_title(loc="left") == "Test accuracy against rounds" and axes.get_xlabel() == "round"
    assert axes.lines[0].get_xdata().tolist() == [10, 20]
    assert axes.lines[0].get_ydata() == pytest.approx([60, 85]) and len(axes.collections) == 2
    (axes,) = run.plot("accuracy", x="bytes").axes
    assert axes.get_xlabel() == "kB sent per node" and axes.lines[0].get_xdata().tolist() == [2, 4]
    (axes,) = run.plot("train_loss", x="seconds").axes
    assert axes.lines[0].get_ydata().tolist() == [0.25, 0.25] and axes.lines[0].get_xdata().tolist() == [1, 2]
    assert axes.get_ylabel() == "training loss"
    figure = run.plot("consensus_distance", x="bytes")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0.125, 0.125]
    assert figure.axes[0].get_yscale() == "log"
    picture, size = figure._repr_png_()
    assert imread(io.BytesIO(picture)).shape[:2] == (2 * size["height"], 2 * size["width"]), "without pyplot"
    for message, words in {
        "unknown metric 'acuracy'; did you mean 'accuracy'?": ("acuracy",),
        "unknown metric 'x' (known: accuracy, loss, train_loss, consensus_distance)": ("x",),
        "unknown x axis 'round'; did you mean 'rounds'?": (None, "round"),
    }.items():
        for results in (run, Study(run.directory)):
            with pytest.raises(BadInput, match=f"^{re.escape(message)}$"):
                results.plot(*words)
    nothing = make_run(tmp_path / "nothing", [], done=False)
    for results, message in ((Run, "holds no evaluation"), (Study, "no run has an evaluation")):
        with pytest.raises(BadInput, match=f"{message}, so there is nothing to draw"):
            results(nothing).plot()


def test_the_plot_of_a_study_has_a_band_for_each_variant(tmp_path):
    for seed, last in enumerate((0.8, 0.9)):
        for scheme in ("gossip", "choco"):
            path = tmp_path / scheme / f"seed-{seed}"
            make_run(path, [(0.5, 0.5), (last, last)], seed, scheme, 1_000_000, True, recorded(scheme, seed))
    late = recorded("gossip", 2)
    make_run(tmp_path / "gossip" / "seed-2", [(0.1, 0.1)], 2, "gossip", 1_000_000, False, late)
    study = Study(str(tmp_path))
    figure = study.plot(x="bytes")
    (axes,) = figure.axes
    names = ["choco", "gossip", "not finished"]
    assert [line.get_label() for line in axes.lines] == names
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert axes.lines[0].get_ydata() == pytest.approx([50, 85]) and axes.get_xlabel() == "MB sent per node"
    assert len({line.get_linestyle() for line in axes.lines}) == 3, "they differ without colors, too"
    ends = interval([80.0, 90.0])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((max(0, ends.low), min(100, ends.high)))
    assert study.plot("consensus_distance").axes[0].get_yscale() == "log"
    assert study.plot("train_loss").axes[0].lines[0].get_ydata() == pytest.approx([0.25, 0.25])
    shared = recorded("gossip", 3, alone=False)
    make_run(tmp_path / "gossip" / "seed-3", [(0.5, 0.5)], 3, "gossip", entry=shared)
    assert "do not compare" in Study(tmp_path).plot(x="seconds").axes[0].get_xlabel()


def test_a_run_is_a_card_in_a_notebook(tmp_path):
    path = make_run(tmp_path / "a", [(0.5, 0.7), (0.8, 0.9)])
    settings = {
        "name": ODD, "rounds": 30, "seed": 1, "dataset": {"name": "digits"}, "model": {"name": "mlp"},
        "graph": {"name": "file", "path": "/x/regular_16_4.edges"},
        "sharing": {"name": "choco", "transforms": [{"name": "top_k"}, {"name": "auto"}]},
    }  # fmt: skip
    (path / "config.yaml").write_text(json.dumps(settings))
    summary = json.loads((path / "summary.json").read_text())
    write_atomically(path / "summary.json", summary | {"model_hash": "0123456789abcdef" * 4})
    html = Run(path)._repr_html_()
    page = Page(html)
    text = "|".join(page.texts)
    assert ODD in page.texts and "script" not in page.tags and "finished" in text
    assert "2 nodes, 30 rounds, seed 1, graph regular_16_4, sharing choco (top_k, auto), model mlp, " in text
    assert "test accuracy|85.00 % after round 20, mean of the nodes|worst, best node|80.00 %" in text
    assert "sent per node|4.0 kB|time|2.0 s|model hash|0123456789abcdef|directory" in text
    (picture,) = page.pictures
    assert picture.shape[2] == 4 and picture[0, 0, 3] == 0, "no background of its own"
    assert page.tags.isdisjoint({"style", "link", "script"}) and "http" not in html, "one piece, for any page"
    assert not re.search(r"(?<![-\w])(background: (?!none)|color: (#000|#fff|black|white))", html)


def test_a_card_never_raises(tmp_path):
    """Not of a run in progress, without evaluations, with damaged files, nor of one that is gone."""
    path = make_run(tmp_path / "a", [], done=False)
    run, study = Run(path), Study(path)
    assert "no evaluation|" in "|".join(Page(run._repr_html_()).texts) + "|"
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        texts = Page(run._repr_html_()).texts
        assert " running" in texts and "no evaluation yet" in texts
        assert run.state == "running"
        ended = {"schema": SCHEMA, "name": "trial", "nodes": 2, "finished_nodes": 2}
        write_atomically(path / "summary.json", ended)
    assert run.state == "finished", "although it was read before the end"
    assert Page(study._repr_html_()).pictures == []
    (path / "evaluations.jsonl").write_text('{"metrics": 1}\n')
    for results in (Run(path), Study(path)):
        assert "evaluations.jsonl:1: not written by this version" in "".join(
            Page(results._repr_html_()).texts
        )
    (path / "config.yaml").unlink()
    assert "it has no config.yaml" in run._repr_html_() and "nor of a study" in study._repr_html_()
    assert repr(study) == f"Study({str(path)!r})"


def test_a_study_is_a_table_with_intervals_in_a_notebook(tmp_path, monkeypatch):
    for seed, last in enumerate((0.8, 0.9)):
        make_run(
            tmp_path / f"{seed}", [(0.5, 0.5), (last, last)], seed, ODD, 1_000_000, True, recorded(ODD, seed)
        )
    late = recorded(ODD, 2, alone=False)
    make_run(tmp_path / "2", [(0.1, 0.1)], 2, ODD, done=False, entry=late)
    study = Study(tmp_path)
    page = Page(study._repr_html_())
    text = "|".join(page.texts)
    half = interval([80.0, 90.0]).half
    assert f"{ODD}|2 of 3|85.00 ± {half:.2f}|85.00 ± {half:.2f}" in text.replace("●| ", "")
    assert "1 variant, 3 runs" in text and "do not count: 1 incomplete." in text and len(page.pictures) == 1
    assert page.tags.isdisjoint({"style", "link", "script"})
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert "scipy" in "".join(Page(Study(tmp_path)._repr_html_()).texts), "one line instead of the table"


def test_paths_may_be_texts(tmp_path):
    path = make_run(tmp_path / "a", [(0.5, 0.7)], entry=recorded("gossip", 0))
    text = str(path)
    assert read_entry(text) == read_entry(path) is not None
    assert read_runs([text])[0].rows == read_runs([path])[0].rows != []
    assert [each.name for each in read_variants([text])] == ["trial"]
    assert not Transcript(text, 0).exists and read_results(text) == []
    assert plot([text], str(tmp_path / "out"))[0] == tmp_path / "out" / "overview.png"
