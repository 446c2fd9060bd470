"""`decentnode import`: configurations of decentralizepy, as its users have them, become ours.

`tests/corpus/bad_imports.py` has the messages about those that cannot be imported.
"""

import json
import re
from itertools import chain
from pathlib import Path

import pytest
import typer
import yaml

from decentnode.cli import app
from decentnode.config import loader
from decentnode.config.settings import CoordinateRecordSettings, Settings
from decentnode.core.registry import Registry
from decentnode.errors import BadInput
from decentnode.graph.files import read_graph
from decentnode.interop import decentralizepy_keys as tables
from decentnode.interop.driver_arguments import Arguments
from decentnode.interop.imported_file import converted
from decentnode.node.experiment import Experiment
from tests.corpus.bad_imports import FLAGS, INI, PLAIN
from tests.support.in_process import Nodes
from tests.support.pages import ROOT, blocks

PAGE = "docs/from_decentralizepy.md"
LAST = len(INI.splitlines())
OF_DECENTRALIZEPY = {
    "plain": ("Sharing", ""),
    "average": ("PlainAverageSharing", ""),
    "jwins": (
        "JWINS",
        """\
change_based_selection = True
alpha_list = [0.1,0.15,0.2,0.25,0.3,0.4,1.0]
wavelet=sym2
level= 4
accumulation = True
accumulate_averaging_changes = True
metadata_cap = 0.5
compression_package = decentralizepy.compression.EliasFpzip
compression_class = EliasFpzip
compress = True
""",
    ),
    "wavelet": (
        "Wavelet",
        "change_based_selection = True\nalpha = 0.1\nwavelet=sym2\nlevel= None\naccumulation = True\n",
    ),
    "choco": (
        "Choco",
        """\
step_size = 0.2
alpha = 0.1
compress = True
compression_package = decentralizepy.compression.EliasFpzip
compression_class = EliasFpzip
""",
    ),
    "partial": (
        "PartialModel",
        "alpha = 0.5\naccumulation = True\naccumulate_averaging_changes = True\nsave_shared = False\n",
    ),
    "largest": ("TopKParams", "alpha = 0.1\n"),
    "random": (
        "SubSampling",
        """\
alpha=0.5
layerwise = True
compress = True
compression_package = decentralizepy.compression.EliasFpzipLossy
compression_class = EliasFpzipLossy
float_precision = 16
""",
    ),
    "random alpha": ("RandomAlpha", ""),
    "fourier": ("FFT", "alpha = 0.2\n"),
    "ternary": ("STC", "alpha = 0.02\n"),
}
"""Sharing classes, and the other keys of their sections."""
SHARINGS = {
    name: f"sharing_package = decentralizepy.sharing.{cls}\nsharing_class = {cls}\n{keys}"
    for name, (cls, keys) in OF_DECENTRALIZEPY.items()
}
EXPECTED: dict[str, str] = {
    "plain": "{name: gossip}",
    "average": "{name: gossip, weights: uniform}",
    "jwins": (
        "{name: jwins, fractions: [0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 1.0], wavelet: sym2, levels: 4, "
        "metadata_cap: 0.5, index_coder: elias_gamma, transforms: [{name: fpzip}]}"
    ),
    "wavelet": (
        "{name: gossip, transforms: "
        "[{name: wavelet, family: sym2}, {name: top_k, fraction: 0.1, by: training}]}"
    ),
    "choco": (
        "{name: choco, gamma: 0.2, transforms: "
        "[{name: top_k, fraction: 0.1}, {name: elias_gamma}, {name: fpzip}]}"
    ),
    "partial": "{name: gossip, transforms: [{name: top_k, fraction: 0.5}]}",
    "largest": "{name: gossip, transforms: [{name: top_k, fraction: 0.1, by: magnitude, per_layer: true}]}",
    "random": (
        "{name: gossip, transforms: "
        "[{name: random_k, fraction: 0.5, per_layer: true}, {name: fpzip, precision: 16}]}"
    ),
    "random alpha": (
        "{name: gossip, transforms: [{name: top_k, fraction: [0.1, 0.2, 0.3, 0.4, 1.0], by: round}]}"
    ),
    "fourier": "{name: gossip, transforms: [{name: fourier}, {name: top_k, fraction: 0.2, by: round}]}",
    "ternary": "{name: stc, fraction: 0.02}",
}
MACHINES = {"0": "10.90.41.130", "1": "10.90.41.131", "2": "10.90.41.132", "3": "10.90.41.133"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "regular_16.edges").write_bytes((ROOT / "graphs" / "regular_16_4.edges").read_bytes())
    return tmp_path


@pytest.fixture
def run_import(call):
    """Runs `decentnode import config.ini`; returns exit code, standard output and standard error."""

    def run(text: str, *words: str) -> tuple[int, str, str]:
        Path("config.ini").write_text(text)
        return call("import", "config.ini", *words)

    return run


@pytest.fixture
def imported(run_import):
    """Imports with the usual flags; returns the settings that our loader reads from the result."""

    def run(text: str, *words: str, flags: tuple[str, ...] = FLAGS) -> Settings:
        code, out, err = run_import(text, *flags, *words)
        assert code == 0, err
        Path("result.yaml").write_text(out)
        return loader.load("result.yaml")

    return run


# What becomes of a file --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARINGS)
def test_every_sharing_class_becomes_its_scheme(name, imported) -> None:
    settings = imported(INI + SHARINGS[name])
    assert yaml.safe_load(Path("result.yaml").read_text())["sharing"] == yaml.safe_load(EXPECTED[name])
    assert settings == loader.load("result.yaml", [f"sharing={EXPECTED[name]}"])
    assert (settings.rounds, settings.seed, settings.model.name) == (2, 99, "lenet")
    assert settings.dataset.options["path"] == "/mnt/nfs/shared/CIFAR"
    assert (settings.dataset.partition.name, settings.dataset.partition.options["alpha"]) == (
        "dirichlet",
        1.0,
    )
    assert (settings.training.steps_per_round, settings.training.batch_size) == (3, 8)
    assert (settings.training.minibatches, settings.training.drop_last) == ("reshuffle", False)
    assert settings.evaluation.every == 5


@pytest.mark.parametrize("name", ["jwins", "choco"])
def test_the_result_trains(name, imported, tmp_path) -> None:
    imported(
        INI + SHARINGS[name], "dataset={name: digits, train_size: 200}", "model=mlp", "communication=inproc"
    )
    experiment = Experiment.from_yaml("result.yaml", ["evaluation.every=0"])
    nodes = Nodes(experiment, tmp_path / "nodes").begin()
    before = nodes.models
    after = nodes.run(0, 2).models
    assert after.isfinite().all()
    assert (after != before).any(dim=1).all()


def test_the_tutorial_of_the_page_is_its_import(imported) -> None:
    ini, ours = blocks(PAGE, "ini")[0], blocks(PAGE, "yaml")[0]
    Path("regular_16.txt").write_bytes(Path("regular_16.edges").read_bytes())
    flags = ("-ms", "1", "-ps", "16", "-is", "80", "-gf", "regular_16.txt", "-ta", "20")
    settings = imported(ini, "name=tutorial", "dataset.path=cifar", flags=flags)
    Path("tutorial.yaml").write_text(ours)
    assert settings == loader.load("tutorial.yaml", ["dataset.path=cifar"])


def test_what_has_no_counterpart_is_named_with_its_line(run_import) -> None:
    ini = INI.replace("random_seed", "only_local = False\nrandom_seed") + SHARINGS["partial"]
    code, _, err = run_import(ini, *FLAGS, "-cf", "other.ini")
    assert code == 2 and "-cf: other.ini is not FILE, which is config.ini; name the configuration once" in err
    code, out, err = run_import(ini, *FLAGS, "-ro", "0", "-tea", "1", "-cf", "config.ini")
    assert code == 0
    comments = [line for line in out.splitlines() if line.startswith("#")]
    assert comments[2] == (
        "#   config.ini:9 DATASET.only_local = False: no equivalent, because each rank has its own part "
        "of one partition"
    )
    assert any(line.startswith("#   -ro 0: no equivalent, because the optimizer keeps") for line in comments)
    missing, differing = err.splitlines()
    assert missing == (
        "config.ini: 4 keys without a counterpart: DATASET.only_local (line 9), "
        "TRAIN_PARAMS.shuffle (line 25), -tea, -ro"
    )
    assert differing.startswith("config.ini: 3 keys not quite the same here")


def test_comments_behind_values_and_indented_keys_are_read(imported) -> None:
    plain = INI + SHARINGS["partial"]
    commented = re.sub(
        r"^(\w+ = [^\n]+)$", r"  \1  ; as in the paper, lr = 3 # or so", plain, flags=re.MULTILINE
    )
    assert commented.count("; as in the paper") > 15
    assert imported(commented, *FLAGS) == imported(plain, *FLAGS)


def test_unknown_keys_of_a_section_that_the_command_line_replaces_are_comments(run_import) -> None:
    ini = INI + SHARINGS["partial"].replace("sharing_class = PartialModel", "sharing_class = Noisy")
    code, out, err = run_import(ini + "noise_level = 0.5\n", *FLAGS, "sharing=gossip")
    assert code == 0 and "noise_level" in err
    reason = "SHARING.noise_level = 0.5: unknown, and sharing is that of the command line"
    assert any(reason in line for line in out.splitlines() if line.startswith("#"))
    code, _, err = run_import(ini + "noise_level = 0.5\n", *FLAGS)
    assert code == 2 and "SHARING.noise_level: unknown key" in err


@pytest.mark.parametrize(
    ("options", "words", "count"),
    [("", (), 0), ("momentum = 0.9\n", (), 1), ("momentum = 0.9\n", ("-ro", "0"), 0)],
)
def test_a_state_that_decentralizepy_would_reset_is_noted(options, words, count, run_import) -> None:
    ini = INI.replace("lr = 0.01\n", f"lr = 0.01\n{options}") + SHARINGS["plain"]
    assert run_import(ini, *FLAGS, *words)[1].count("in each round, unless -ro is 0") == count


def test_the_machines_of_a_cluster(imported) -> None:
    Path("ip.json").write_text(json.dumps(MACHINES, indent=4))
    words = "model=mlp", "dataset=digits"
    flags = (
        "--ip",
        "ip.json",
        "--procs-per-machine",
        "4",
        "--iterations",
        "9",
        "--graph",
        "regular_16.edges",
    )
    mapping = imported(PLAIN, *words, flags=flags).mapping.make()
    assert [(m.address, m.nodes) for m in mapping.machines] == [(a, 4) for a in MACHINES.values()]
    Path("ip_addr_6Machines.json").write_text(json.dumps(MACHINES))
    flags = ("-ms", "2", "-ps", "10,6", "-mid", "1", "-is", "9", "-gf", "regular_16.edges")
    settings = imported(PLAIN, *words, flags=flags)
    assert [machine.nodes for machine in settings.mapping.make().machines] == [10, 6]
    assert settings.machine == 1


def test_graphs_in_both_formats_and_by_a_degree(imported) -> None:
    edges = imported(PLAIN).graph.make()
    rows = [" ".join(map(str, targets)) for targets in edges.adjacency]
    Path("regular.adjacency").write_text("\n".join(["16", *rows]) + "\n")
    Path("regular").write_bytes(Path("regular.adjacency").read_bytes())
    for words in (("regular.adjacency",), ("regular", "-gt", "adjacency")):
        flags = ("-is", "2", "-gf", *words)
        assert imported(PLAIN, flags=flags).graph.make().adjacency == edges.adjacency
    assert read_graph("regular.adjacency") == edges.adjacency
    settings = imported(PLAIN + "[NODE]\ngraph_degree = 7\n", flags=("-is", "2", "-ps", "16"))
    assert (settings.graph.name, settings.graph.options["degree"]) == ("epidemic_oracle", 7)


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("full_epochs = False", "full_epochs = True", "training.epochs_per_round", 3),
        # As decentralizepy reads it: a number, and then what Python takes as true.
        ("full_epochs = False", "full_epochs = 1", "training.epochs_per_round", 3),
        ("full_epochs = False", "full_epochs = 0x2", "training.epochs_per_round", 3),
        ("full_epochs = False", "full_epochs = on", "training.epochs_per_round", 3),
        ("full_epochs = False", "full_epochs = 0", "training.steps_per_round", 3),
        ("full_epochs = False", "full_epochs = 0.0", "training.steps_per_round", 3),
        ("full_epochs = False", "full_epochs = None", "training.steps_per_round", 3),
        ("full_epochs = False", "full_epochs =", "training.steps_per_round", 3),
        ("full_epochs = False\n", "", "training.minibatches", "reshuffle"),
        (
            "s = CIFAR10\nmodel_class = LeNet",
            "s = Femnist\nmodel_class = CNN",
            "training.drop_last",
            True,
        ),
        ("rounds = 3\n", "", "training.steps_per_round", 1),
        ("batch_size = 8\n", "", "training.batch_size", 1),
        ("loss_class = CrossEntropyLoss", "loss = nll_loss", "training.loss", "NLLLoss"),
        ("class = SGD", "class = Adam\nbetas = (0.8, 0.9)", "training.optimizer.betas", [0.8, 0.9]),
        ("lr = 0.01", "lr = .5\nnesterov = yes\nmomentum=0.9", "training.optimizer.nesterov", True),
        ("alpha = 1\n", "", "dataset.partition.alpha", 100),
        ("= dirichlet\nalpha = 1", "= kshard\nshards = 4", "dataset.partition.labels_per_node", 4),
        ("= dirichlet\nalpha = 1", "= True\nshards = 2", "dataset.partition.name", "shards"),
        ("= dirichlet\nalpha = 1", "= 1\nshards = 2", "dataset.partition.name", "shards"),
        ("= dirichlet\nalpha = 1", "= 0", "dataset.partition.name", "iid"),
        ("= dirichlet\nalpha = 1", "= No", "dataset.partition.name", "iid"),
        ("= dirichlet", "= iid", "dataset.partition.name", "iid"),
        ("= dirichlet", "= simple\ntest_batch_size = 32", "evaluation.batch_size", 32),
        (
            "= dirichlet",
            "= iid\nvalidation_source = Test\nvalidation_size = 0.1",
            "dataset.validation.size",
            0.1,
        ),
        (
            "= dirichlet",
            "= iid\nvalidation_source = Train\nvalidation_size = 0.1",
            "dataset.validation.source",
            "train",
        ),
        ("TCP\naddr", "TCP_ACK\noffset = 9100\naddr", "communication.base_port", 9100),
        ("TCP\naddr", "TCP_ACK\nrecv_timeout = 50\naddr", "failures.deadline", 50),
        (
            "s = CIFAR10\nmodel_class = LeNet",
            "s = Femnist\nmodel_class = CNN",
            "dataset.train_path",
            "/mnt/nfs/shared/CIFAR",
        ),
        ("s = CIFAR10\nmodel_class = LeNet", "s = Femnist\nmodel_class = CNN", "model", "cnn"),
        ("= LeNet", "= CNN", "model", "cifar_cnn"),
        ("= LeNet", "= ResNet8", "model", "resnet8"),
    ],
)
def test_a_key_becomes_ours(old, new, key, value, imported) -> None:
    assert old in INI
    imported(INI.replace(old, new) + SHARINGS["plain"])
    entry = yaml.safe_load(Path("result.yaml").read_text())
    for word in key.split("."):
        entry = entry[word]
    assert entry == value


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ("accumulation = True\naccumulate_averaging_changes = True\n", "change"),
        ("accumulation = 1\naccumulate_averaging_changes = on\n", "change"),
        ("accumulation = True\n", "training"),
        ("accumulation = 1\naccumulate_averaging_changes = 0\n", "training"),
        ("accumulation = False\naccumulate_averaging_changes = True\n", "round"),
        ("", "round"),
    ],
)
@pytest.mark.parametrize("name", ["PartialModel", "TopK", "Wavelet", "JWINS"])
def test_values_are_ranked_by_the_change_that_decentralizepy_accumulates(name, more, by, imported) -> None:
    settings = imported(f"{INI}sharing_class = {name}\n{more}")
    options = settings.sharing.options if name == "JWINS" else settings.sharing.transforms[-1].options
    assert (options["by"] or "change") == by
    text = Path("result.yaml").read_text()
    assert "dataset_class = CIFAR10: normalized by its colors; decentralizepy takes (x - 0.5) / 0.5" in text
    assert ("decentralizepy mirrors the model there" in text) == (name in ("Wavelet", "JWINS"))


def test_sizes_become_a_partition(imported) -> None:
    """A list may continue in indented lines."""
    sizes = [1 / 16] * 16
    text = str(sizes).replace(", ", ",\n  ", 2)
    ini = INI.replace("sizes =", f"sizes = {text}").replace("= dirichlet\nalpha = 1", "= simple")
    assert imported(ini + SHARINGS["plain"]).dataset.partition.options["sizes"] == tuple(sizes)


def test_a_class_of_ones_own_keeps_its_place(imported, here) -> None:
    (here / "my_data.py").write_text("from decentnode.datasets.digits import Digits as Mine\n")
    (here / "slow_scheme.py").write_text(
        "from dataclasses import dataclass\n\nfrom decentnode.sharing import Gossip\n\n\n"
        "@dataclass\nclass Slow(Gossip):\n    step_size: float = 1.0\n"
    )
    ini = INI.replace("decentralizepy.datasets.CIFAR10", "my_data").replace("class = CIFAR10", "class = Mine")
    ini = re.sub(r"(train|test)_dir.*\n", "", ini).replace("alpha = 1\n", "alpha = 1\ntest_size = 40\n")
    sharing = "sharing_package = slow_scheme\nsharing_class = Slow\nstep_size = 0.5\n"
    settings = imported(ini + sharing, "model=mlp")
    assert (settings.sharing.name, settings.sharing.options["step_size"]) == ("slow_scheme:Slow", 0.5)
    assert (settings.dataset.name, settings.dataset.options["test_size"]) == ("my_data:Mine", 40)


def test_paths_start_at_the_folder_of_the_result(run_import, here) -> None:
    (here / "set").mkdir()
    (here / "deep").mkdir()
    ini = INI.replace("/mnt/nfs/shared/CIFAR", "set") + SHARINGS["plain"]
    code, out, _ = run_import(ini, *FLAGS, "--out", "deep/result.yaml")
    assert (code, out) == (0, "deep/result.yaml\n")
    result = yaml.safe_load(Path("deep/result.yaml").read_text())
    assert (result["graph"], result["dataset"]["path"]) == ("../regular_16.edges", "../set")
    assert loader.load("deep/result.yaml").dataset.options["path"] == str(here / "set")
    code, _, err = run_import(ini, *FLAGS, "--out", "deep/result.yaml")
    assert (code, err) == (2, "deep/result.yaml: exists; remove it, or name another file\n")


# Bad input ---------------------------------------------------------------------------------------------


def test_a_driver_with_a_server_is_refused_with_the_words_that_make_it_one(run_import, imported) -> None:
    flags = (*FLAGS, "-wr", "0.5", "-sm", "0")
    code, out, err = run_import(PLAIN, *flags)
    words = "'graph={name: federated, nodes: 17, rate: 0.5}' sharing=fed_avg"
    assert (code, out) == (2, "")
    assert err == (
        "config.ini:1 graph: -wr 0.5 is of a driver with a server, which is a graph here; add the words "
        f"{words} (for STC: fed_stc)\n"
    )
    settings = imported(PLAIN, *words.replace("'", "").replace("0.5} ", "0.5}\n").split("\n"), flags=flags)
    assert settings.graph.options.items() >= {"nodes": 17, "rate": 0.5}.items()
    assert (settings.graph.name, settings.sharing.name) == ("federated", "fed_avg")
    assert [machine.nodes for machine in settings.mapping.options["machines"]] == [17]


@pytest.mark.parametrize("line", range(LAST + 10))
def test_a_missing_line_has_an_answer(line) -> None:
    """Either the result is a configuration of ours, or the defects are one line each."""
    lines = (INI + SHARINGS["jwins"]).splitlines()
    Path("config.ini").write_text("\n".join(lines[:line] + lines[line + 1 :]))
    arguments = Arguments(iterations=2, graph=Path("regular_16.edges"))
    try:
        Path("result.yaml").write_text(converted(Path("config.ini"), arguments, [], None)[1])
        assert loader.load("result.yaml").rounds == 2
    except BadInput as error:
        assert all(re.match(r"config\.ini:\d+", line) and "\n" not in line for line in error.lines)


# The page has the same tables --------------------------------------------------------------------------


def rows(*headings: str) -> list[list[str]]:
    """Returns the cells of the tables' rows under headings of the page that contain a text."""
    sections = re.split(r"^## ", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    wanted = [part for part in sections if any(text in part.split("\n", 1)[0] for text in headings)]
    lines = chain.from_iterable(part.splitlines() for part in wanted)
    return [
        [cell.strip() for cell in line.strip("|").split(" |")] for line in lines if line.startswith("| `")
    ]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def plain(text: str) -> str:
    """Returns prose without the marks of Markdown."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


def test_the_page_has_every_key_with_its_counterpart_or_the_reason() -> None:
    on_page: dict[str, tuple[tuple[str, ...], str]] = {}
    for row in rows(*(f"[{section}]" for section in tables.KEYS)):
        if len(row) == 3:
            names = quoted(row[0].partition(" with ")[0])
            reason = plain(row[2]).removeprefix("no equivalent, because ") if not row[1] else ""
            on_page |= {name: (tuple(quoted(row[1])), reason) for name in names}
    on_page.pop("lr")
    keys = chain.from_iterable(section.items() for section in tables.KEYS.values())
    known = [(name, (key.yaml, plain(key.reason))) for name, key in keys]
    assert {name for name, _ in known} == on_page.keys()
    in_two_sections = {"alpha", "rounds"}
    assert all(counterpart == on_page[name] for name, counterpart in known if name not in in_two_sections)


def test_the_page_has_every_flag() -> None:
    on_page = {}
    for row in rows("Flags"):
        reason = plain(row[2]).removeprefix("no equivalent, because ") if not row[1] else ""
        on_page |= {flag: (tuple(quoted(row[1])), reason) for flag in quoted(row[0])}
    assert on_page.pop("-cf")
    assert on_page == {name: (flag.yaml, plain(flag.reason)) for name, flag in tables.FLAGS.items()}
    command = typer.main.get_command(app.app).commands["import"]  # type: ignore[attr-defined]
    assert set(tables.FLAGS) <= {option for parameter in command.params for option in parameter.opts}


def pairs(key: str) -> dict[str, tuple[str, ...]]:
    """Returns what the note of a key says of classes: `A`, `B`: `ours`, `ours`; ..."""
    notes = {row[2] for row in rows("[") if len(row) == 3 and key in quoted(row[0])}
    parts = [part.partition("`: `") for note in notes for part in note.split("; ") if "`: `" in part]
    return {name: tuple(quoted(f"`{right}")) for left, _, right in parts for name in quoted(f"{left}`")}


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("dataset_class", {name: dataset["name"] for name, dataset in tables.DATASETS.items()}),
        ("model_class", tables.MODELS),
        ("partition_niid", tables.PARTITIONS),
        ("training_class", tables.TRAININGS),
        ("comm_class", tables.COMMUNICATIONS),
        ("compression_class", tables.COMPRESSIONS),
        ("loss", tables.LOSSES),
    ],
)
def test_the_page_has_every_class(key, table) -> None:
    on_page = pairs(key)
    assert on_page.keys() == table.keys()
    for name, counterpart in table.items():
        ours = (counterpart,) if isinstance(counterpart, str) else counterpart
        assert on_page[name][: len(ours)] == ours


SECTIONS_OF_SHARINGS = [row for row in rows("[SHARING]") if len(row) == 2 and row[1].startswith("`")]


@pytest.mark.parametrize("row", SECTIONS_OF_SHARINGS, ids=lambda row: row[0])
def test_the_page_has_every_sharing_class(row, imported) -> None:
    """With the numbers of the page, each class becomes what the page says."""
    (shown,) = [yaml.safe_load(text)["sharing"] for text in quoted(row[1])]
    numbers = dict(re.findall(r"(fraction|gamma): (\[[^]]+\]|[\d.]+)", row[1]))
    for name in quoted(row[0]):
        scheme = tables.SCHEMES[name]
        ini = f"sharing_class = {name}\n"
        for key, place in scheme.keys.items():
            if place[-1] in numbers:
                ini += f"{key} = {numbers[str(place[-1])]}\n"
        settings = imported(INI + ini)
        if name in ("JWINS", "RandomAlphaWavelet"):
            assert (settings.sharing.name, settings.sharing.options["by"]) == (shown["name"], shown["by"])
            continue
        expected = loader.load("result.yaml", [f"sharing={json.dumps(shown)}"])
        assert settings.sharing.name == expected.sharing.name
        assert settings.sharing.options == expected.sharing.options
        assert settings.sharing.weights == expected.sharing.weights
        transforms, wanted = settings.sharing.transforms, expected.sharing.transforms
        assert [transform.name for transform in transforms] == [transform.name for transform in wanted]
        # The page leaves out the wavelet, whose default is another one in decentralizepy.
        assert name == "Wavelet" or transforms == wanted


EARLIER = [row for row in rows("Sharing classes") if len(row) == 3]


@pytest.mark.parametrize("row", EARLIER, ids=lambda row: quoted(row[0])[0])
def test_the_page_has_the_sharing_classes_of_earlier_releases(row, imported) -> None:
    name, *keys = quoted(row[0])
    (shown,) = [yaml.safe_load(text)["sharing"] for text in quoted(row[1])]
    flags = ("-is", "80", "-gf", "regular_16.edges")
    settings = imported("\n".join([INI + f"sharing_class = {name}", *keys, ""]), flags=flags)
    result = yaml.safe_load(Path("result.yaml").read_text())["sharing"]
    assert rounded(result) == rounded(shown if isinstance(shown, dict) else {"name": shown})
    assert settings.graph.name == ("fully_connected" if name == "Synchronous" else "file")


def rounded(value):
    """Returns a value without what floating-point numbers add."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("cls", "keys", "line", "message"),
    [
        (
            "GrowingAlpha",
            "",
            0,
            "SHARING.init_alpha: missing; the default of decentralizepy is 0",
        ),
        (
            "GrowingAlpha",
            "init_alpha = 0",
            1,
            "sharing.transforms[0].fraction: must be a number > 0",
        ),
        ("GrowingAlpha", "init_alpha = .1\nk = 0.5", 2, "SHARING.k: must be a whole number > 0, not '0.5'"),
        (
            "ManualAdapt",
            "change_alpha = [.1]",
            0,
            "SHARING.change_rounds: must be a list of numbers",
        ),
        (
            "ManualAdapt",
            "change_alpha = [.1, .2, .3]\nchange_rounds = [9, 4]",
            2,
            "must have its rounds in",
        ),
        ("RandomAlphaIncremental", "range_end = 0.05", 1, "SHARING.range_end: must be above range_start and"),
        ("TopKPlusRandom", "alpha = much", 1, "SHARING.alpha: must be a number, not 'much'"),
        (
            "SharingCentrality",
            "",
            0,
            "SHARING.sharing_class: no counterpart of 'SharingCentrality': its",
        ),
        (
            "Sharing",
            "sharing_package = decentralizepy.sharing.SharingCentrality",
            1,
            "SHARING.sharing_package: no counterpart of 'SharingCentrality': its weights sum to 1 over all",
        ),
    ],
)
def test_what_an_earlier_class_lacks_has_its_line(cls, keys, line, message, run_import) -> None:
    code, out, err = run_import(f"{INI}sharing_class = {cls}\n{keys}\n", *FLAGS)
    assert (code, out) == (2, "")
    assert err.startswith(f"config.ini:{LAST + 1 + line} ") and message in err and err.count("\n") == 1


def test_what_is_shared_is_recorded_where_it_was(imported) -> None:
    ini = INI + SHARINGS["partial"].replace("save_shared = False", "save_shared = True")
    assert imported(ini).records.coordinates == CoordinateRecordSettings(every=1)
    assert imported(INI + SHARINGS["partial"]).records.coordinates is None


def test_a_class_that_changes_in_its_first_round_begins_with_that(imported) -> None:
    ini = INI + "sharing_class = ManualAdapt\nchange_alpha = [0.1, 0.5, 0.6]\nchange_rounds = [1, 3]\n"
    options = imported(ini).sharing.transforms[0].options
    assert (options["fraction"], options["fraction_from"]) == (0.5, ((2, 0.6),))


def test_a_key_that_decentralizepy_lacks_is_taken_for_shards(imported) -> None:
    ini = INI.replace("= dirichlet\nalpha = 1", "= kshard\nshard = 2") + SHARINGS["plain"]
    assert imported(ini).dataset.partition.options["labels_per_node"] == 2
    assert (
        "DATASET.shard = 2: taken for shards; decentralizepy has no such" in Path("result.yaml").read_text()
    )


def test_the_page_names_no_class_twice() -> None:
    names = [name for row in SECTIONS_OF_SHARINGS for name in quoted(row[0])]
    names += [quoted(row[0])[0] for row in EARLIER]
    assert len(names) == len(set(names)) and set(names) == tables.SCHEMES.keys()
    assert all(f"`{name}` is refused" in (ROOT / PAGE).read_text() for name in tables.REFUSED)


def test_counterparts_are_plugins_of_ours() -> None:
    from decentnode.core import registry

    def known(kind: Registry, names: set[str]) -> bool:
        return names <= kind.classes().keys()

    assert known(registry.SHARINGS, {scheme.name for scheme in tables.SCHEMES.values()})
    assert known(registry.MODELS, set(tables.MODELS.values()))
    assert known(registry.TRANSFORMS, set(chain.from_iterable(tables.COMPRESSIONS.values())))
