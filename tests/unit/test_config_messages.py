"""Every message that a wrong configuration gives, word for word."""

from pathlib import Path

import pytest

from decentnode import config
from decentnode.errors import ConfigError
from decentnode.registry import DATASETS, GRAPHS, MODELS, SHARINGS, TRANSFORMS
from decentnode.torch_classes import OPTIMIZERS

RING = "4\n0 1\n1 2\n2 3\n3 0\n"
BASE = """\
name: trial
seed: 1
rounds: 3
graph: {name: file, path: ring.edges}
mapping:
  machines:
    - {address: 127.0.0.1, nodes: 4}
dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}
model: {name: mlp, hidden: [8]}
training:
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
  batch_size: 16
  steps_per_round: 5
sharing: {name: gossip, weights: metropolis_hastings}
communication: zeromq
evaluation: {every: 10}
failures: {deadline: 60}
"""
OUTSIDE = '''\
"""Code of a user."""

from dataclasses import dataclass
from decentnode.errors import GraphError
from decentnode.graph import StaticGraph
from decentnode.sharing.base import Sharing
from decentnode.sharing.gossip import Gossip


@dataclass
class Picky(StaticGraph):
    nodes: int = 4

    @property
    def adjacency(self):
        raise GraphError("one thing", "nodes: another thing")


@dataclass
class Unfinished(Sharing):
    pass


@dataclass
class Still(Gossip):
    needs_static_graph = True


@dataclass
class Moving(StaticGraph):
    static = False

    @property
    def adjacency(self):
        return ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2))
'''
KNOWN = {
    "graphs": ", ".join(GRAPHS.classes()),
    "sharings": ", ".join(SHARINGS.classes()),
    "models": ", ".join(MODELS.classes()),
    "datasets": ", ".join(DATASETS.classes()),
    "transforms": ", ".join(TRANSFORMS.classes()),
    "optimizers": ", ".join(OPTIMIZERS.classes()),
    "keys": "name, seed, rounds, graph, mapping, dataset, model, training, sharing, communication, "
    "evaluation, failures, device, run_dir, machine",
}
OF_TRAINING = "a mapping with optimizer and steps_per_round or epochs_per_round"

# (what in BASE, is replaced by what, the lines of the error without "x.yaml:")
CASES: dict[str, tuple[str, str, list[str]]] = {
    # keys and options that nobody knows
    "key": ("seed: 1", "sed: 1", ["2 sed: unknown key; did you mean 'seed'?"]),
    "key, nothing near": ("seed: 1", "zebra: 1", ["2 zebra: unknown key (known: {keys})"]),
    "key of a section": (
        "batch_size",
        "bach_size",
        ["12 training.bach_size: unknown key; did you mean 'batch_size'?"],
    ),
    "option": ("alpha", "alhpa", [
        "8 dataset.partition.alhpa: unknown option of dirichlet; did you mean 'alpha'?"
    ]),
    "option of a transform": ("weights: metropolis_hastings", "transforms: [{name: cast, dtpe: bf16}]", [
        "14 sharing.transforms[0].dtpe: unknown option of cast; did you mean 'dtype'?"
    ]),
    "option of a class of torch": ("momentum", "momentm", [
        "11 training.optimizer.momentm: unknown option of SGD; did you mean 'momentum'?"
    ]),
    "generic option": ("weights", "weigts", [
        "14 sharing.weigts: unknown option of gossip; did you mean 'weights'?"
    ]),
    "nested option": ("nodes: 4", "nodes: 4, user: me", [
        "7 mapping.machines[0].user: unknown key (known: address, nodes)"
    ]),
    # names that nobody knows
    "scheme": ("name: gossip", "name: gosip", [
        "14 sharing.name: unknown sharing 'gosip'; did you mean 'gossip'? (known: {sharings})"
    ]),
    "graph": ("{name: file, path: ring.edges}", "rng", [
        "4 graph: unknown graph 'rng'; did you mean 'ring'? (known: {graphs})"
    ]),
    "optimizer in small letters": ("name: SGD", "name: sgd", [
        "11 training.optimizer.name: unknown optimizer 'sgd'; did you mean 'SGD'? (known: {optimizers})"
    ]),
    "no name": ("weights: metropolis_hastings", "transforms: [{dtype: bf16}]", [
        "14 sharing.transforms[0].name: missing; name one of: {transforms}"
    ]),
    "name that is no text": ("name: mlp", "name: 3", [
        "9 model.name: must be a name, not 3; name one of: {models}"
    ]),
    "module that is not there": ("{name: mlp, hidden: [8]}", "nowhere:Net", [
        "9 model: cannot import 'nowhere:Net': No module named 'nowhere' in {here}, beside the "
        "configuration, or installed"
    ]),
    "class that is not there": ("{name: mlp, hidden: [8]}", "outside:Net", [
        "9 model: module 'outside' has no class 'Net'"
    ]),
    "class of another kind": ("name: gossip", "name: 'outside:Picky'", [
        "14 sharing.name: 'outside:Picky' is no sharing; "
        "it must be a subclass of decentnode.sharing.base.Sharing"
    ]),
    "module with a mistake": ("{name: mlp, hidden: [8]}", "broken:Net", [
        "9 model: cannot import 'broken:Net': ZeroDivisionError: division by zero"
    ]),
    "class without its methods": ("name: gossip", "name: 'outside:Unfinished'", [
        "14 sharing: Unfinished: Can't instantiate abstract class Unfinished "
        "with abstract methods mix, outgoing, payload_layout"
    ]),
    # types and ranges
    "negative rounds": ("rounds: 3", "rounds: -3", ["3 rounds: must be a whole number > 0, not -3"]),
    "text for a number": ("rounds: 3", "rounds: '3'", ["3 rounds: must be a whole number > 0, not '3'"]),
    "true for a number": ("rounds: 3", "rounds: true", ["3 rounds: must be a whole number > 0, not true"]),
    "a fraction": ("rounds: 3", "rounds: 3.0", ["3 rounds: must be a whole number > 0, not 3.0"]),
    "1.1 number": ("rounds: 3", "rounds: 1_000", ["3 rounds: must be a whole number > 0, not '1_000'"]),
    "1.1 truth": ("evaluation: {every: 10}", "evaluation: {average_model: yes}", [
        "16 evaluation.average_model: must be true or false, not 'yes'"
    ]),
    "large": ("seed: 1", "seed: 99999999999999999999", [
        "2 seed: 99999999999999999999 is too large; whole numbers have at most 63 bits"
    ]),
    "not a number": ("lr: 0.1", "lr: .nan", ["11 training.optimizer.lr: .nan is not a finite number"]),
    "infinite": ("lr: 0.1", "lr: 1e999", ["11 training.optimizer.lr: 1e999 is not a finite number"]),
    "one of several": ("seed: 1", "device: gpu", ["2 device: must be 'cpu' or 'cuda' or 'auto', not 'gpu'"]),
    "range": ("deadline: 60", "deadline: 0", ["17 failures.deadline: must be a number > 0, not 0"]),
    "two-sided range": ("zeromq", "{base_port: 70000}", [
        "15 communication.base_port: must be a whole number > 0 and < 65536, not 70000"
    ]),
    "list": ("hidden: [8]", "hidden: [8, 0]", ["9 model.hidden[1]: must be a whole number > 0, not 0"]),
    "no list": ("hidden: [8]", "hidden: 8", ["9 model.hidden: must be a list of whole numbers > 0, not 8"]),
    "number or list": ("steps_per_round: 5", "steps_per_round: [5, x, 5, -1]", [
        "13 training.steps_per_round[1]: must be a whole number >= 0, not 'x'",
        "13 training.steps_per_round[3]: must be a whole number >= 0, not -1",
    ]),
    "number or list, neither": ("steps_per_round: 5", "steps_per_round: many", [
        "13 training.steps_per_round: must be a whole number >= 0 or a list of whole numbers >= 0 or null, "
        "not 'many'"
    ]),
    "number for a section": ("evaluation: {every: 10}", "evaluation: 10", [
        "16 evaluation: must be a mapping with every, batch_size, average_model, figures, not 10"
    ]),
    "list for a plug-in": ("{name: mlp, hidden: [8]}", "[mlp]", [
        "9 model: must be a name, or a mapping with its options, not a list of 1"
    ]),
    "name for the transforms": ("weights: metropolis_hastings", "transforms: cast", [
        "14 sharing.transforms: must be a list of transforms, not 'cast'"
    ]),
    "name of the run": ("name: trial", "name: a/b", [
        "1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not 'a/b'"
    ]),
    # what is missing
    "rounds": ("rounds: 3\n", "", ["1 rounds: missing; it must be a whole number > 0"]),
    "dataset": ("dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}\n", "", [
        "1 dataset: missing; name one of: {datasets}"
    ]),
    "training": (BASE[BASE.index("training:") : BASE.index("sharing:")], "", [
        f"1 training: missing; it must be {OF_TRAINING}"
    ]),
    "training that is null": (BASE[BASE.index("  optimizer:") : BASE.index("sharing:")], "", [
        f"10 training: missing; it must be {OF_TRAINING}"
    ]),
    "required option": ("{name: file, path: ring.edges}", "{name: regular, degree: 2}", [
        "4 graph.nodes: missing; it must be a whole number > 0"
    ]),
    "required option of torch": ("batch_size: 16", "scheduler: StepLR", [
        "12 training.scheduler.step_size: missing; it has no default"
    ]),
    "steps": ("  steps_per_round: 5\n", "", [
        "10 training: give exactly one of steps_per_round and epochs_per_round"
    ]),
    "steps twice": ("steps_per_round: 5", "steps_per_round: 5\n  epochs_per_round: 1", [
        "10 training: give exactly one of steps_per_round and epochs_per_round"
    ]),
    "file": ("ring.edges", "rong.edges", [
        "4 graph.path: no such file: {here}/rong.edges; did you mean 'ring.edges'?"
    ]),
    # what a plug-in itself refuses
    "graph file": ("ring.edges", "bad.edges", [
        "4 graph: {here}/bad.edges:2: rank 9 is out of range; with 4 nodes it is 0..3",
        "4 graph: {here}/bad.edges:3: node 1 is its own neighbor; remove that, it always has its own model",
    ]),
    "lines of its own": ("{name: file, path: ring.edges}", "{name: 'outside:Picky', nodes: 4}", [
        "4 graph: one thing", "4 graph.nodes: another thing",
    ]),
    "torch": ("lr: 0.1", "lr: -1", ["11 training.optimizer: SGD: Invalid learning rate: -1.0"]),
    "torch, a type": ("lr: 0.1", "lr: fast", ["11 training.optimizer.lr: must be a number, not 'fast'"]),
    "loss": ("batch_size: 16", "loss: {name: CrossEntropyLoss, reduction: none}", [
        "12 training.loss: CrossEntropyLoss: reduction 'none' gives no single loss; use 'mean' or 'sum'"
    ]),
    # addresses
    "address": ("127.0.0.1", "10.0.0.300", [
        "7 mapping.machines[0].address: '10.0.0.300' is not an address; "
        "give an IPv4 or IPv6 address or a host name"
    ]),
    "wildcard": ("127.0.0.1", "0.0.0.0", [
        "7 mapping.machines[0].address: '0.0.0.0' is not the address of one machine; "
        "give the one that the others reach"
    ]),
    "address with a port": ("127.0.0.1", "'node1:29600'", [
        "7 mapping.machines[0].address: 'node1:29600' is more than an address; "
        "give an IPv4 or IPv6 address or a host name without protocol and port"
    ]),
    "brackets": ("127.0.0.1", "'[::1]'", [
        "7 mapping.machines[0].address: '[::1]' is not an IPv6 address; write it bare, such as fd00::1"
    ]),
    "no machines": ("\n    - {address: 127.0.0.1, nodes: 4}", " []", [
        "6 mapping.machines: the list is empty; give at least one {{address: ..., nodes: ...}}"
    ]),
    "one address twice": ("nodes: 4}", "nodes: 2}\n    - {address: 127.0.0.1, nodes: 2}", [
        "8 mapping.machines[1]: 127.0.0.1 is the address of machines[0] too; "
        "give each machine its own, or one entry with all its nodes"
    ]),
    # sections that do not go together
    "count": ("nodes: 4", "nodes: 5", ["5 mapping: the machines carry 5 nodes, the graph has 4"]),
    "length of a list": ("steps_per_round: 5", "steps_per_round: [5, 5, 5]", [
        "13 training.steps_per_round: must be one number, or one for each of the 4 ranks, not a list of 3"
    ]),
    "machine": ("nodes: 4}\n", "nodes: 2}\n    - {address: 10.0.0.2, nodes: 2}\nmachine: 2\n", [
        "9 machine: must be the index of a machine, 0..1, not 2"
    ]),
    "order of transforms": ("weights: metropolis_hastings", "transforms: [cast, cast]", [
        "14 sharing.transforms[1]: cast takes dense or sparse but cast gives quantized"
    ]),
    "a transform of the scheme": (
        "name: gossip, weights: metropolis_hastings", "name: jwins, fractions: []",
        ["14 sharing: top_k needs one fraction or more (jwins itself puts it into the chain)"],
    ),
    "a transform and the scheme": (
        "name: gossip, weights: metropolis_hastings",
        "name: choco, transforms: [{name: gaussian_noise, sigma: 1, scope: neighbor}]",
        ["14 sharing.transforms[0]: gaussian_noise gives each neighbor something else, but choco needs all "
         "of them to hear the same"],
    ),
    "complete graph": ("name: gossip", "name: all_reduce", [
        "14 sharing: all_reduce needs a graph where everyone hears everyone, such as fully_connected; "
        "this one is not"
    ]),
    "directed graph": ("ring.edges", "ring.edges, directed: true", [
        "14 sharing.weights: metropolis_hastings weights need an undirected graph; use uniform or file"
    ]),
    # YAML
    "key twice": ("seed: 1", "seed: 1\nseed: 2", ["3 seed: this key appears twice; the first is in line 2"]),
    "tag": ("seed: 1", "seed: !!python/object:os.system x", [
        "2 seed: the tag 'python/object:os.system' is not read; write a plain value"
    ]),
    "half a character": ("name: trial", r'name: "\ud800"', [
        "1 name: this text has a character that is not allowed (null, or half of a surrogate pair)"
    ]),
    "key that is a number": ("seed: 1", "1: seed", ["2: the key 1 is not text; put it in quotes"]),
    "key that is a list": ("seed: 1", "? [a]\n: 1", ["2: a key is a word, not a list or a mapping"]),
    "merge": ("momentum: 0.9", "<<: {momentum: 0.9}", [
        "11 training.optimizer: merge keys (<<) are not read; "
        "write the keys out, or use an alias for a whole section"
    ]),
    # all at once, in the order of the file
    "several": ("rounds: 3\ngraph: {name: file, path: ring.edges}", "rounds: x\ngraph: ring\nmachin: 1", [
        "3 rounds: must be a whole number > 0, not 'x'",
        "4 graph.nodes: missing; it must be a whole number > 0",
        "5 machin: unknown key; did you mean 'machine'?",
    ]),
}  # fmt: skip

# whole files that give nothing to check
UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"),
    "only a comment": (
        b"# none\n",
        "x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'",
    ),
    "list": (b"\n- 1\n", "x.yaml:2: this is not a mapping; a configuration has lines such as 'seed: 1'"),
    "text": (b"hello", "x.yaml:1: this is not a mapping; a configuration has lines such as 'seed: 1'"),
    "tab": (b"a:\n\tb: 1\n", "x.yaml:2: a tab; YAML is indented with spaces"),
    "brace": (b"a: {b: 1\nc: 2\n", "x.yaml:2: not valid YAML: expected ',' or '}', but got ':'"),
    "colons": (b"a: b: c\n", "x.yaml:1: not valid YAML: mapping values are not allowed here"),
    "alias": (b"a: 1\nb: *c\n", "x.yaml:2: not valid YAML: found undefined alias 'c'"),
    "documents": (
        b"a: 1\n---\nb: 2\n",
        "x.yaml:2: a second document begins; a configuration is one document",
    ),
    "control character": (b"a: 1\nb: \x01\n", "x.yaml:2: character 0x0001 is not allowed in YAML"),
    "latin-1": (b"a: 1\nname: caf\xe9\n", "x.yaml:2: not UTF-8 text (byte 0xe9)"),
    "deep": (b"a: " + b"[" * 9999, "x.yaml:1: nested deeper than 32 levels"),
    "endless": (b"a: &a [*a]\n", "x.yaml:1: nested deeper than 32 levels"),
    "billion laughs": (
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 9)),
        "x.yaml:1: aliases make this too large; at most 100000 values",
    ),
    "large": (b"#" * 300_000, "x.yaml: too large for a configuration; at most 262144 bytes are read"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a graph, a graph file with defects, and code of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "outside", raising=False)
    Path("ring.edges").write_text(RING)
    Path("bad.edges").write_text("4\n0 9\n1 1\n2 3\n0 1\n1 2\n")
    Path("outside.py").write_text(OUTSIDE)
    Path("broken.py").write_text("1 / 0\n")
    return tmp_path


def defects_of(text: str | bytes, *overrides: str) -> tuple[str, ...]:
    Path("x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        config.load("x.yaml", overrides)
    return error.value.defects


def test_base_is_right() -> None:
    Path("x.yaml").write_text(BASE)
    assert config.load("x.yaml").rounds == 3


@pytest.mark.parametrize("name", CASES)
def test_message(name, here) -> None:
    old, new, expected = CASES[name]
    assert old in BASE
    wanted = ["x.yaml:" + line.format(here=here, **KNOWN) for line in expected]
    assert list(defects_of(BASE.replace(old, new, 1))) == wanted


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_file(name) -> None:
    content, expected = UNREADABLE[name]
    assert defects_of(content) == (expected,)


TWO_MACHINES = "mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2, nodes: 1}]"


def test_all_nodes_in_one_process_on_two_machines() -> None:
    assert defects_of(BASE, TWO_MACHINES, "communication=inproc") == (
        "command line: communication: carries all nodes in one process, but there are 2 machines; use zeromq",
    )


def test_list_for_machines_or_ranks() -> None:
    assert defects_of(BASE, TWO_MACHINES, "training.steps_per_round=[1, 2, 3]") == (
        "command line: training.steps_per_round: must be one number, or one for each of the "
        "4 ranks or 2 machines, not a list of 3",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("base_port: 65534", "the ports 65534..65536 are needed, the last that exists is 65535"),
        ("base_port: 29498", "the ports 29498..29500 are needed, but 29500 is mapping.rendezvous_port"),
    ],
)
def test_ports(options, message) -> None:
    text = BASE.replace("zeromq", f"{{{options}}}")
    assert defects_of(text, TWO_MACHINES) == (f"x.yaml:15 communication.base_port: {message}",)
    # One process with all nodes of a machine needs one port; without other machines none is opened.
    Path("x.yaml").write_text(text)
    assert config.load("x.yaml", [TWO_MACHINES, "communication.nodes_per_process=3", "rounds=1"])
    assert config.load("x.yaml").communication.name == "zeromq"


def test_scheme_that_needs_a_static_graph() -> None:
    text = BASE.replace("{name: file, path: ring.edges}", "outside:Moving").replace(
        "gossip", "'outside:Still'"
    )
    assert defects_of(text) == (
        "x.yaml:14 sharing: Still needs a graph that is the same in every round; this one is not",
    )


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: cannot be read: No such file or directory$"):
        config.load("nowhere.yaml")


def test_a_missing_file_names_the_one_beside_it(tmp_path) -> None:
    (tmp_path / "quickstart.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match=r"No such file or directory; did you mean 'quickstart\.yaml'\?$"):
        config.load(tmp_path / "quickstart.yml")


def test_an_override_is_not_taken_for_the_file() -> None:
    with pytest.raises(ConfigError, match=r"; the configuration comes first, then what it changes$"):
        config.load("rounds=5")
