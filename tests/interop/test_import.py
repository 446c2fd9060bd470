"""`decentnode import`: configurations of decentralizepy, as its users have them, become ours."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest
import typer
import yaml

from decentnode.cli import app
from decentnode.config import loader
from decentnode.config.settings import Settings
from decentnode.core.registry import Registry
from decentnode.errors import BadInput
from decentnode.graph.files import read_graph
from decentnode.interop import decentralizepy_keys as tables
from decentnode.interop.driver_arguments import Arguments
from decentnode.interop.imported_file import converted
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes
from tests.support.pages import ROOT, blocks

PAGE = "docs/from_decentralizepy.md"
INI = """\
[DATASET]
dataset_package = decentralizepy.datasets.CIFAR10
dataset_class = CIFAR10
model_class = LeNet
train_dir = /mnt/nfs/shared/CIFAR
test_dir = /mnt/nfs/shared/CIFAR
; python list of fractions below
sizes =
random_seed = 99
partition_niid = dirichlet
alpha = 1

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.01

[TRAIN_PARAMS]
training_package = decentralizepy.training.Training
training_class = Training
rounds = 3
full_epochs = False
batch_size = 8
shuffle = True
loss_package = torch.nn
loss_class = CrossEntropyLoss

[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = ip_addr_6Machines.json

[SHARING]
"""
LAST = len(INI.splitlines())
SHARINGS = {
    "plain": "sharing_package = decentralizepy.sharing.Sharing\nsharing_class = Sharing\n",
    "average": (
        "sharing_package = decentralizepy.sharing.PlainAverageSharing\nsharing_class = PlainAverageSharing\n"
    ),
    "jwins": """\
sharing_package = decentralizepy.sharing.JWINS.JWINS
sharing_class = JWINS
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
    "wavelet": """\
sharing_package = decentralizepy.sharing.Wavelet
sharing_class = Wavelet
change_based_selection = True
alpha = 0.1
wavelet=sym2
level= None
accumulation = True
""",
    "choco": """\
sharing_package = decentralizepy.sharing.Choco
sharing_class = Choco
step_size = 0.2
alpha = 0.1
compress = True
compression_package = decentralizepy.compression.EliasFpzip
compression_class = EliasFpzip
""",
    "partial": """\
sharing_package = decentralizepy.sharing.PartialModel
sharing_class = PartialModel
alpha = 0.5
accumulation = True
accumulate_averaging_changes = True
save_shared = False
""",
    "largest": (
        "sharing_package = decentralizepy.sharing.TopKParams\nsharing_class = TopKParams\nalpha = 0.1\n"
    ),
    "random": """\
sharing_package = decentralizepy.sharing.SubSampling
sharing_class = SubSampling
alpha=0.5
layerwise = True
compress = True
compression_package = decentralizepy.compression.EliasFpzipLossy
compression_class = EliasFpzipLossy
float_precision = 16
""",
    "random alpha": "sharing_package = decentralizepy.sharing.RandomAlpha\nsharing_class = RandomAlpha\n",
    "fourier": "sharing_package = decentralizepy.sharing.FFT\nsharing_class = FFT\nalpha = 0.2\n",
    "ternary": "sharing_package = decentralizepy.sharing.STC\nsharing_class = STC\nalpha = 0.02\n",
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
FLAGS = ("-ms", "1", "-ps", "16", "-is", "2", "-gf", "regular_16.edges")
MACHINES = {"0": "10.90.41.130", "1": "10.90.41.131", "2": "10.90.41.132", "3": "10.90.41.133"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "regular_16.edges").write_bytes((ROOT / "graphs" / "regular_16_4.edges").read_bytes())
    return tmp_path


@pytest.fixture
def call(capsys):
    """Runs `decentnode import config.ini`; returns exit code, standard output and standard error."""

    def run(text: str, *words: str) -> tuple[int, str, str]:
        Path("config.ini").write_text(text)
        with pytest.raises(SystemExit) as end:
            app.main(["import", "config.ini", *words])
        return int(end.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def imported(call):
    """Imports with the usual flags; returns the settings that our loader reads from the result."""

    def run(text: str, *words: str, flags: tuple[str, ...] = FLAGS) -> Settings:
        code, out, err = call(text, *flags, *words)
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
    found = imported(ini, "name=tutorial", "dataset.path=cifar", flags=flags)
    Path("tutorial.yaml").write_text(ours)
    assert found == loader.load("tutorial.yaml", ["dataset.path=cifar"])


def test_what_has_no_counterpart_is_named_with_its_line(call) -> None:
    ini = INI.replace("random_seed", "only_local = False\nrandom_seed") + SHARINGS["partial"]
    code, out, err = call(ini, *FLAGS, "-ro", "0", "-tea", "1")
    assert code == 0
    comments = [line for line in out.splitlines() if line.startswith("#")]
    assert comments[2] == (
        "#   config.ini:9 DATASET.only_local = False: no equivalent, because each rank has its own part "
        "of one partition"
    )
    assert any(line.startswith("#   -ro 0: no equivalent, because the optimizer keeps") for line in comments)
    missing, differing = err.splitlines()
    assert missing == (
        "config.ini: 5 keys without a counterpart: DATASET.only_local (line 9), "
        f"TRAIN_PARAMS.shuffle (line 25), SHARING.save_shared (line {LAST + 7}), -tea, -ro"
    )
    assert differing.startswith("config.ini: 2 keys not quite the same here")


def test_comments_behind_values_and_indented_keys_are_read(imported) -> None:
    plain = INI + SHARINGS["partial"]
    commented = re.sub(
        r"^(\w+ = [^\n]+)$", r"  \1  ; as in the paper, lr = 3 # or so", plain, flags=re.MULTILINE
    )
    assert commented.count("; as in the paper") > 15
    assert imported(commented, *FLAGS) == imported(plain, *FLAGS)


def test_unknown_keys_of_a_section_that_the_command_line_replaces_are_comments(call) -> None:
    ini = INI + SHARINGS["partial"].replace("sharing_class = PartialModel", "sharing_class = Noisy")
    code, out, err = call(ini + "noise_level = 0.5\n", *FLAGS, "sharing=gossip")
    assert code == 0 and "noise_level" in err
    reason = "SHARING.noise_level = 0.5: unknown, and sharing is that of the command line"
    assert any(reason in line for line in out.splitlines() if line.startswith("#"))
    code, _, err = call(ini + "noise_level = 0.5\n", *FLAGS)
    assert code == 2 and "SHARING.noise_level: unknown key" in err


@pytest.mark.parametrize(
    ("options", "words", "count"),
    [("", (), 0), ("momentum = 0.9\n", (), 1), ("momentum = 0.9\n", ("-ro", "0"), 0)],
)
def test_a_state_that_decentralizepy_would_reset_is_noted(options, words, count, call) -> None:
    ini = INI.replace("lr = 0.01\n", f"lr = 0.01\n{options}") + SHARINGS["plain"]
    assert call(ini, *FLAGS, *words)[1].count("in each round, unless -ro is 0") == count


def test_the_machines_of_a_cluster(imported) -> None:
    Path("ip.json").write_text(json.dumps(MACHINES, indent=4))
    one = "model=mlp", "dataset=digits"
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
    mapping = imported(INI + SHARINGS["plain"], *one, flags=flags).mapping.make()
    assert [(m.address, m.nodes) for m in mapping.machines] == [(a, 4) for a in MACHINES.values()]
    Path("ip_addr_6Machines.json").write_text(json.dumps(MACHINES))
    flags = ("-ms", "2", "-ps", "10,6", "-mid", "1", "-is", "9", "-gf", "regular_16.edges")
    settings = imported(INI + SHARINGS["plain"], *one, flags=flags)
    assert [machine.nodes for machine in settings.mapping.make().machines] == [10, 6]
    assert settings.machine == 1


def test_graphs_in_both_formats_and_by_a_degree(imported) -> None:
    edges = imported(INI + SHARINGS["plain"]).graph.make()
    rows = [" ".join(map(str, targets)) for targets in edges.adjacency]
    Path("regular.adjacency").write_text("\n".join(["16", *rows]) + "\n")
    Path("regular").write_bytes(Path("regular.adjacency").read_bytes())
    for words in (("regular.adjacency",), ("regular", "-gt", "adjacency")):
        flags = ("-is", "2", "-gf", *words)
        assert imported(INI + SHARINGS["plain"], flags=flags).graph.make().adjacency == edges.adjacency
    assert read_graph("regular.adjacency") == edges.adjacency
    settings = imported(
        INI + SHARINGS["plain"] + "[NODE]\ngraph_degree = 7\n", flags=("-is", "2", "-ps", "16")
    )
    assert (settings.graph.name, settings.graph.options["degree"]) == ("epidemic_oracle", 7)


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("full_epochs = False", "full_epochs = True", "training.epochs_per_round", 3),
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
    found = yaml.safe_load(Path("result.yaml").read_text())
    for word in key.split("."):
        found = found[word]
    assert found == value


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ("accumulation = True\naccumulate_averaging_changes = True\n", "change"),
        ("accumulation = True\n", "training"),
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
    (here / "my_scheme.py").write_text(
        "from dataclasses import dataclass\n\nfrom decentnode.sharing import Gossip\n\n\n"
        "@dataclass\nclass Slow(Gossip):\n    step_size: float = 1.0\n"
    )
    ini = INI.replace("decentralizepy.datasets.CIFAR10", "my_data").replace("class = CIFAR10", "class = Mine")
    ini = re.sub(r"(train|test)_dir.*\n", "", ini).replace("alpha = 1\n", "alpha = 1\ntest_size = 40\n")
    sharing = "sharing_package = my_scheme\nsharing_class = Slow\nstep_size = 0.5\n"
    settings = imported(ini + sharing, "model=mlp")
    assert (settings.sharing.name, settings.sharing.options["step_size"]) == ("my_scheme:Slow", 0.5)
    assert (settings.dataset.name, settings.dataset.options["test_size"]) == ("my_data:Mine", 40)


def test_paths_start_at_the_folder_of_the_result(call, here) -> None:
    (here / "set").mkdir()
    (here / "deep").mkdir()
    ini = INI.replace("/mnt/nfs/shared/CIFAR", "set") + SHARINGS["plain"]
    code, out, _ = call(ini, *FLAGS, "--out", "deep/result.yaml")
    assert (code, out) == (0, "deep/result.yaml\n")
    found = yaml.safe_load(Path("deep/result.yaml").read_text())
    assert (found["graph"], found["dataset"]["path"]) == ("../regular_16.edges", "../set")
    assert loader.load("deep/result.yaml").dataset.options["path"] == str(here / "set")
    code, _, err = call(ini, *FLAGS, "--out", "deep/result.yaml")
    assert (code, err) == (2, "deep/result.yaml: exists; remove it, or name another file\n")


# Bad input ---------------------------------------------------------------------------------------------

GOOD = INI + SHARINGS["plain"]
NONE = "in decentralizepy an argument of the driver; add"


def test_a_driver_with_a_server_is_refused_with_the_words_that_make_it_one(call, imported) -> None:
    flags = (*FLAGS, "-wr", "0.5", "-sm", "0")
    code, out, err = call(GOOD, *flags)
    words = "'graph={name: federated, nodes: 17, rate: 0.5}' sharing=fed_avg"
    assert (code, out) == (2, "")
    assert err == (
        "config.ini:1 graph: -wr 0.5 is of a driver with a server, which is a graph here; add the words "
        f"{words} (for STC: fed_stc)\n"
    )
    settings = imported(GOOD, *words.replace("'", "").replace("0.5} ", "0.5}\n").split("\n"), flags=flags)
    assert settings.graph.options.items() >= {"nodes": 17, "rate": 0.5}.items()
    assert (settings.graph.name, settings.sharing.name) == ("federated", "fed_avg")
    assert [machine.nodes for machine in settings.mapping.options["machines"]] == [17]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            GOOD,
            "rounds: 3\n",
            "config.ini:1: no INI file: the first line is a section, such as [DATASET], not ",
        ),
        (GOOD, "", "config.ini:1: no section [DATASET]; a configuration of decentralizepy has DATASET, "),
        ("[SHARING]", "what\n[SHARING]", f"config.ini:{LAST}: an entry is 'key = value', not 'what'"),
        ("[SHARING]", "[DATASET]", f"config.ini:{LAST}: '[DATASET]' appears twice; remove one"),
        ("lr =", "lr = 1\nlr =", "config.ini:17: 'lr' appears twice; remove one"),
        ("[SHARING]", "[SHARNG]", f"config.ini:{LAST} [SHARNG]: unknown section; did you mean 'SHARING'?"),
        ("shuffle", "shufle", "config.ini:24 TRAIN_PARAMS.shufle: unknown key; did you mean 'shuffle'?"),
        (
            "class = CIFAR10",
            "class = CIFR10",
            "config.ini:3 DATASET.dataset_class: no counterpart of 'CIFR10'; did you mean 'CIFAR10'?; "
            "name another plug-in, such as dataset=NAME or dataset=module:Class",
        ),
        (
            "class = CIFAR10",
            "class = Coursera",
            "config.ini:3 DATASET.dataset_class: no counterpart of 'Coursera' (those with one: CIFAR10, ",
        ),
        (
            "class = Sharing",
            "class = ManualAdapt",
            f"config.ini:{LAST + 2} SHARING.sharing_class: no counterpart of 'ManualAdapt' (those with one: ",
        ),
        ("dataset_class = CIFAR10\n", "", "config.ini:1 DATASET.dataset_class: missing; it names the class"),
        ("dirichlet", "dirchlet", "config.ini:10 DATASET.partition_niid: unknown partition; did you mean "),
        (
            "= dirichlet",
            "= iid\nvalidation_source = test",
            "config.ini:11 DATASET.validation_size: missing; it is the fraction of the samples that ",
        ),
        (
            "= dirichlet",
            "= iid\nvalidation_source = Tset\nvalidation_size = 0.1",
            "config.ini:11 DATASET.validation_source: unknown part; did you mean 'test'?",
        ),
        ("SGD", "SDG", "config.ini:15 training.optimizer.name: unknown optimizer 'SDG'; did you mean 'SGD'?"),
        ("lr =", "lrr =", "config.ini:16 training.optimizer.lrr: unknown option of SGD; did you mean 'lr'?"),
        ("= 8", "= a", "config.ini:23 training.batch_size: must be a whole number > 0 or null, not 'a'"),
        (
            SHARINGS["plain"],
            "sharing_class = Choco\nalpha = 0.1\n",
            f"config.ini:{LAST + 1} SHARING.step_size: missing; Choco has no default for it",
        ),
        (
            "= decentralizepy.training",
            "= mine",
            "config.ini:20 TRAIN_PARAMS.training_class: local steps of your own ",
        ),
    ],
)
def test_a_wrong_file_is_one_line(old, new, line, call) -> None:
    code, out, err = call(GOOD.replace(old, new), *FLAGS)
    assert (code, out) == (2, "")
    assert err.startswith(line), err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("-gf", "regular_16.edges"), f"config.ini:1 rounds: {NONE} --iterations N"),
        (("-is", "2"), f"config.ini:1 graph: {NONE} --graph FILE"),
        (("-is", "2", "-gf", "regular.edges"), "command line: graph.path: no such file: "),
        ((*FLAGS, "-is", "0"), "command line: rounds: must be a whole number > 0, not 0"),
        ((*FLAGS, "-ps", "8"), "command line: mapping: the machines carry 8 nodes, the graph has 16; "),
        (
            (*FLAGS, "-ps", "many"),
            "--procs-per-machine: numbers of processes, such as 16 or 16,8, not 'many'",
        ),
        ((*FLAGS, "-ms", "4"), "ip_addr_6Machines.json: cannot be read: No such file or directory"),
        ((*FLAGS, "--ip", "no.json"), "no.json: cannot be read: No such file or directory"),
        ((*FLAGS, "--ip", "list.json"), "list.json: must be the addresses by machine id, such as "),
        ((*FLAGS, "--ip", "gap.json"), "gap.json: the machine ids must be 0..1, not '0, 2'"),
        ((*FLAGS, "--ip", "cut.json"), "cut.json:2: not valid JSON: "),
        (
            (*FLAGS, "-ms", "3", "--ip", "two.json"),
            "two.json: has 2 addresses for 3 machines; add the others",
        ),
        (
            (*FLAGS, "-ms", "2", "-ps", "8,4,4", "--ip", "two.json"),
            "--procs-per-machine: must be one number, or one for each of the 2 machines, not 3",
        ),
        (
            (*FLAGS, "-ms", "2", "--ip", "two.json"),
            "two.json:1 mapping: the machines carry 32 nodes, the graph has 16",
        ),
        ((*FLAGS, "sede=1"), "command line: sede: unknown key; did you mean 'seed'?"),
        ((*FLAGS, "--out", "no/x.yaml"), "no/x.yaml: cannot be written: No such file or directory"),
    ],
)
def test_wrong_words_are_one_line(words, line, call) -> None:
    Path("list.json").write_text("[]")
    Path("gap.json").write_text('{"0": "a", "2": "b"}')
    Path("two.json").write_text('{"0": "a", "1": "b"}')
    Path("cut.json").write_text('{"0":\n')
    code, out, err = call(GOOD, *words)
    assert (code, out) == (2, "")
    assert err.startswith(line), err


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[DATASET]\nmodel_class = \xff\n", "config.ini:2: not UTF-8 text; save it as UTF-8"),
        (
            b"#" * (1 << 18) + b"\n",
            "config.ini: too large for a configuration; at most 262144 bytes are read",
        ),
        (None, "config.ini: cannot be read: No such file or directory; did you mean 'confg.ini'?"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(content, what, capsys) -> None:
    Path("confg.ini").write_bytes(b"")
    if content is not None:
        Path("config.ini").write_bytes(content)
    with pytest.raises(SystemExit) as end:
        app.main(["import", "config.ini", *FLAGS])
    assert end.value.code == 2
    assert capsys.readouterr().err == what + "\n"


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
        assert all(re.match(r"config\.ini:\d+", one) and "\n" not in one for one in error.lines)


# The page has the same tables --------------------------------------------------------------------------


def rows(*headings: str) -> list[list[str]]:
    """The cells of the tables' rows under headings of the page that contain a text."""
    sections = re.split(r"^## ", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    wanted = [part for part in sections if any(text in part.split("\n", 1)[0] for text in headings)]
    lines = chain.from_iterable(part.splitlines() for part in wanted)
    return [
        [cell.strip() for cell in line.strip("|").split(" |")] for line in lines if line.startswith("| `")
    ]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def plain(text: str) -> str:
    """Prose without the marks of Markdown."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


def test_the_page_has_every_key_with_its_counterpart_or_the_reason() -> None:
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for row in rows(*(f"[{section}]" for section in tables.KEYS)):
        if len(row) == 3:
            names = quoted(row[0].partition(" with ")[0])
            reason = plain(row[2]).removeprefix("no equivalent, because ") if not row[1] else ""
            found |= {name: (tuple(quoted(row[1])), reason) for name in names}
    found.pop("lr")
    keys = chain.from_iterable(section.items() for section in tables.KEYS.values())
    ours = [(key, (one.yaml, plain(one.reason))) for key, one in keys]
    shared = {"alpha", "rounds"}  # in two sections
    assert {key for key, _ in ours} == found.keys()
    assert {key: one for key, one in ours if key not in shared} == {
        key: one for key, one in found.items() if key not in shared
    }


def test_the_page_has_every_flag() -> None:
    found = {
        flag: (
            tuple(quoted(row[1])),
            plain(row[2]).removeprefix("no equivalent, because ") if not row[1] else "",
        )
        for row in rows("Flags")
        for flag in quoted(row[0])
    }
    assert found.pop("-cf")
    assert found == {flag: (one.yaml, plain(one.reason)) for flag, one in tables.FLAGS.items()}
    command = typer.main.get_command(app.app).commands["import"]  # type: ignore[attr-defined]
    assert set(tables.FLAGS) <= {option for parameter in command.params for option in parameter.opts}


def pairs(key: str) -> dict[str, tuple[str, ...]]:
    """What the note of a key says of classes: `A`, `B`: `ours`, `ours`; ..."""
    (note,) = {row[2] for row in rows("[") if len(row) == 3 and key in quoted(row[0])}
    parts = [part.partition("`: `") for part in note.split("; ") if "`: `" in part]
    return {name: tuple(quoted(f"`{right}")) for left, _, right in parts for name in quoted(f"{left}`")}


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("dataset_class", {name: (one["name"],) for name, one in tables.DATASETS.items()}),
        ("model_class", {name: (one,) for name, one in tables.MODELS.items()}),
        ("partition_niid", {name: (one,) for name, one in tables.PARTITIONS.items()}),
        ("training_class", {name: (one,) for name, one in tables.TRAININGS.items()}),
        ("comm_class", {name: (one,) for name, one in tables.COMMUNICATIONS.items()}),
        ("compression_class", tables.COMPRESSIONS),
        ("loss", {name: (one,) for name, one in tables.LOSSES.items()}),
    ],
)
def test_the_page_has_every_class(key, table) -> None:
    found = pairs(key)
    assert found.keys() == table.keys()
    assert {name: found[name][: len(ours)] for name, ours in table.items()} == table


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
        defaults = {"wavelet": "haar"} if name == "Wavelet" else {}
        expected = loader.load("result.yaml", [f"sharing={json.dumps(shown)}"])
        assert (settings.sharing.name, settings.sharing.options) == (
            expected.sharing.name,
            expected.sharing.options,
        )
        assert settings.sharing.weights == expected.sharing.weights
        assert [one.name for one in settings.sharing.transforms] == [
            one.name for one in expected.sharing.transforms
        ]
        assert defaults or settings.sharing.transforms == expected.sharing.transforms


def test_the_page_names_no_class_twice() -> None:
    assert {name for row in SECTIONS_OF_SHARINGS for name in quoted(row[0])} == tables.SCHEMES.keys()
    text = (ROOT / PAGE).read_text()
    unbuilt = quoted(text[text.index("`GrowingAlpha`") : text.index("are not built in")])
    assert len(unbuilt) > 5
    assert not set(unbuilt) & tables.SCHEMES.keys()


def test_counterparts_are_plugins_of_ours() -> None:
    from decentnode.core import registry

    def known(kind: Registry, names: set[str]) -> bool:
        return names <= kind.classes().keys()

    assert known(registry.SHARINGS, {scheme.name for scheme in tables.SCHEMES.values()})
    assert known(registry.MODELS, set(tables.MODELS.values()))
    assert known(registry.TRANSFORMS, set(chain.from_iterable(tables.COMPRESSIONS.values())))
