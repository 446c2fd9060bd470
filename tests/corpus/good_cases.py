"""Input that is right, though it may look odd: every way to write what is meant must be accepted."""

from collections.abc import Iterator, Sequence

from tests.corpus.case import BASE, ROOT, Case, edited
from tests.corpus.formats import cifar_files, idx_files

CONFIG = "x.yaml"
GRAPH, MAPPING = "{name: file, path: ring.edges}", "  machines:\n    - {address: 127.0.0.1, nodes: 4}"
PARTITION, MODEL = "{name: dirichlet, alpha: 0.5}", "{name: mlp, hidden: [8]}"
OPTIMIZER, SHARING = "{name: SGD, lr: 0.1, momentum: 0.9}", "{name: gossip, weights: metropolis_hastings}"
WEIGHTS = "weights: metropolis_hastings"

EDITS: dict[str, tuple[str, str]] = {
    "a name with all that it may have": ("name: trial", "name: A-b_c.1"),
    "a name that looks like a number": ("name: trial", "name: '1e3'"),
    "a name of one letter": ("name: trial", "name: _"),
    "the largest seed": ("seed: 1", "seed: 9223372036854775807"),
    "seed 0": ("seed: 1", "seed: 0"),
    "a hexadecimal seed": ("seed: 1", "seed: 0xff"),
    "no seed": ("seed: 1\n", ""),
    "a task": ("seed: 1", "task: {name: classification, top_k: [2], per_class: true}"),
    "writers, by name and with options": ("seed: 1", "records: {writers: [csv, {name: wandb, tags: [a]}]}"),
    "a null for the default": ("seed: 1", "seed: null"),
    "one round": ("rounds: 3", "rounds: 1"),
    "very many rounds": ("rounds: 3", "rounds: 1000000000"),
    "a plus sign": ("rounds: 3", "rounds: +3"),
    "leading zeros": ("rounds: 3", "rounds: 003"),
    "any device": ("seed: 1", "device: auto"),
    "a folder for results": ("seed: 1", "run_dir: ~/runs/a b"),
    "this machine": ("seed: 1", "machine: 0"),
    "a comment": ("seed: 1", "seed: 1 # one"),
    "a text in two kinds of quotes": ("name: trial", "\"name\": 'trial'"),
    "an anchor that nobody uses": ("seed: 1", "seed: &s 1"),
    "an alias of a number": ("rounds: 3", "rounds: &r 3\ncheckpoint: {every: *r}"),
    "an alias of a section": ("evaluation: {every: 10}", "evaluation: &e {every: 10}\ncheckpoint: *e"),
    "a document start": ("name: trial", "---\nname: trial"),
    "a version of YAML": ("name: trial", "%YAML 1.2\n---\nname: trial"),
    "a document end": ("failures: {deadline: 60}\n", "failures: {deadline: 60}\n...\n"),
    "blank lines": ("seed: 1\n", "\n\nseed: 1\n\n"),
    "a flow over lines": ("hidden: [8]", "hidden: [\n  8,\n  4,\n]"),
    "a ring": (GRAPH, "{name: ring, nodes: 4}"),
    "the short form of a file": (GRAPH, "ring.edges"),
    "a file with its type": ("path: ring.edges", "path: ring.edges, type: edges"),
    "a regular graph": (GRAPH, "{name: regular, nodes: 4, degree: 2}"),
    "a small world": (GRAPH, "{name: small_world, nodes: 4, degree: 2, rewire: 0}"),
    "a random graph that is complete": (GRAPH, "{name: erdos_renyi, nodes: 4, probability: 1}"),
    "a grid": (GRAPH, "{name: grid, rows: 2, columns: 2}"),
    "a grid of one row": (GRAPH, "{name: grid, rows: 1, columns: 4}"),
    "a torus": (GRAPH, "{name: torus, rows: 2, columns: 2}"),
    "a hypercube": (GRAPH, "{name: hypercube, dimension: 2}"),
    "a directed graph": (f"graph: {GRAPH}", "graph: {name: exponential, nodes: 4}\nx: 1"),
    "a graph of one's own that repeats": (GRAPH, "corpus_graphs:Repeats"),
    "a graph of one's own that changes": (GRAPH, "corpus_graphs:Honest"),
    "a graph of one's own that is drawn": (GRAPH, "corpus_graphs:Redrawn"),
    "a graph of one's own that may be in parts": (GRAPH, "corpus_graphs:Allowed"),
    "a default mapping": ("mapping:\n" + MAPPING + "\n", ""),
    "a host name": ("127.0.0.1", "node-1.example.org"),
    "a name with an underscore": ("127.0.0.1", "node_1"),
    "an IPv6 address": ("127.0.0.1", "'fd00::1'"),
    "a loopback of IPv6": ("127.0.0.1", "'::1'"),
    "two machines": ("nodes: 4}", "nodes: 1}\n    - {address: 127.0.0.2, nodes: 3}"),
    "the highest port": ("mapping:\n", "mapping:\n  rendezvous_port: 65535\n"),
    "shards": (PARTITION, "{name: shards, labels_per_node: 5}"),
    "counts": (PARTITION, "{name: sizes, sizes: [1434, 1, 1, 1]}"),
    "fractions": (PARTITION, "{name: sizes, sizes: [0.1, 0.2, 0.3, 0.4]}"),
    "a rank that does not train": (PARTITION, "{name: iid, ranks: [0, 2, 3]}"),
    "hardly any heterogeneity": ("alpha: 0.5", "alpha: 1e6"),
    "a whole number for a number": ("alpha: 0.5", "alpha: 1"),
    "as many samples as nodes": (f"name: digits, partition: {PARTITION}", "name: digits, train_size: 4"),
    "a cnn": (MODEL, "{name: cnn, channels: [2, 3], hidden: 4}"),
    "a lenet": (MODEL, "lenet"),
    "a linear model": (MODEL, "logistic_regression"),
    "no hidden layer": ("hidden: [8]", "hidden: []"),
    "a network of somebody": (MODEL, "corpus_nets:Net"),
    "a network with its option": (MODEL, "{name: 'corpus_nets:Net', width: 10}"),
    "Adam": (OPTIMIZER, "Adam"),
    "Adam with betas": (OPTIMIZER, "{name: Adam, betas: [0.5, 0.9], lr: 1e-3}"),
    "a rate of 0": ("lr: 0.1", "lr: 0"),
    "a rate with an exponent": ("lr: 0.1", "lr: 1E-1"),
    "no rate": ("lr: 0.1, ", ""),
    "Nesterov": ("momentum: 0.9", "momentum: 0.9, nesterov: true"),
    "a schedule": ("batch_size: 16", "scheduler: {name: StepLR, step_size: 2}"),
    "a schedule that looks at the loss": ("batch_size: 16", "scheduler: ReduceLROnPlateau"),
    "a schedule of steps": ("batch_size: 16", "scheduler: {name: MultiStepLR, milestones: [1, 2]}"),
    "a cosine": ("batch_size: 16", "scheduler: {name: CosineAnnealingLR, T_max: 3}"),
    "one cycle": ("batch_size: 16", "scheduler: {name: OneCycleLR, max_lr: 0.1, total_steps: 3}"),
    "another loss": ("batch_size: 16", "loss: MultiMarginLoss"),
    "a loss of one-hot labels": ("batch_size: 16", "loss: {name: MSELoss, reduction: sum}"),
    "smooth labels": ("batch_size: 16", "loss: {name: CrossEntropyLoss, label_smoothing: 0.1}"),
    "steps for each rank": ("steps_per_round: 5", "steps_per_round: [1, 2, 3, 0]"),
    "no steps": ("steps_per_round: 5", "steps_per_round: 0"),
    "a part of an epoch": ("steps_per_round: 5", "epochs_per_round: 0.5"),
    "no epochs": ("steps_per_round: 5", "epochs_per_round: 0"),
    "a list for one machine": ("steps_per_round: 5", "steps_per_round: [5]"),
    "a batch larger than all samples": ("batch_size: 16", "batch_size: 100000"),
    "clipping": ("batch_size: 16", "clip_norm: 1"),
    "buffers": ("batch_size: 16", "mix_buffers: true"),
    "a scheme by its name": (SHARING, "choco"),
    "a scheme that never talks": (SHARING, "none"),
    "gamma 1": (SHARING, "{name: choco, gamma: 1}"),
    "a chain of three": (WEIGHTS, "transforms: [{name: top_k, fraction: 0.1}, cast, zstd]"),
    "all values kept": (WEIGHTS, "transforms: [{name: top_k, fraction: 1.0}]"),
    "a fraction for each round": (WEIGHTS, "transforms: [{name: top_k, fraction: [0.1, 0.2]}, rice]"),
    "chunks in blocks of matrices": (WEIGHTS, "transforms: [{name: dct, matrices: true}, chunk_top_k, cast]"),
    "layers by turns": (WEIGHTS, "outer: SGD, blend: 0.5, transforms: [{name: fragments, count: 2}, qsgd]"),
    "an empty chain": (WEIGHTS, "transforms: []"),
    "a scheme with its compressor": (SHARING, "{name: choco, transforms: [sign]}"),
    "weights that are uniform": (WEIGHTS, "weights: uniform"),
    "weights from a file": (WEIGHTS, "weights: {name: file, path: weights.txt}"),
    "all in one process": ("zeromq", "inproc"),
    "over tcp": ("zeromq", "{local: tcp, base_port: 65532}"),
    "all in one process over ipc": ("zeromq", "{local: ipc, nodes_per_process: 100}"),
    "evaluation at the end": ("every: 10", "every: 0"),
    "no evaluation": ("every: 10", "every: 0, final: false"),
    "evaluation of a part": ("every: 10", "every: 1, nodes: [3, 0], samples: 100, background: true"),
    "evaluation up to a target": ("every: 10", "every: 10, target: {accuracy: .95}"),
    "models as results": ("evaluation: {every: 10}", "records: {models: {every: 10}}"),
    "the last models": ("evaluation: {every: 10}", "records: {models: {}}"),
    "no pictures": ("every: 10", "figures: false, average_model: false"),
    "stop at a loss": ("deadline: 60", "on_loss: stop"),
    "no grace": ("deadline: 60", "grace: 0"),
    "part of a second": ("deadline: 60", "deadline: 0.5"),
    "begin with some": ("deadline: 60", "start: at_least 3"),
    "begin with all by number": ("deadline: 60", "start: at_least 4"),
    "restarts": ("deadline: 60", "restart: {attempts: 2}"),
    "checkpoints": ("seed: 1", "checkpoint: {every: 2}"),
    "no faults": ("seed: 1", "faults: []"),
    "no security on purpose": ("seed: 1", "security: none"),
    "a deep model": ("hidden: [8]", "hidden: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"),
}
"""What in BASE is replaced by what."""

ENCODED: dict[str, bytes] = {
    "a byte order mark": b"\xef\xbb\xbf" + BASE.encode(),
    "Windows line ends": BASE.replace("\n", "\r\n").encode(),
    "old Macintosh line ends": BASE.replace("\n", "\r").encode(),
    "no last line end": BASE.rstrip("\n").encode(),
    "letters beyond ASCII in a comment": BASE.encode() + "# für alle 日本\n".encode(),
    "trailing blanks": BASE.replace("\n", "  \n").encode(),
    "JSON": b"""{"rounds": 3, "graph": "ring.edges", "dataset": "digits", "model": "mlp",
        "training": {"optimizer": "SGD", "steps_per_round": 1}}""",
}

OVERRIDES: dict[str, list[str]] = {
    "a number": ["rounds=5"],
    "a section": ["evaluation={every: 1, figures: false}"],
    "a short form": ["sharing=choco", "training.optimizer=Adam"],
    "an entry of a list": ["mapping.machines[0].address=127.0.0.5"],
    "an entry with a point": ["mapping.machines.0.nodes=4"],
    "a section that the file lacks": ["checkpoint.every=5"],
    "back to the default": ["failures=null", "mapping=null"],
    "the last of two counts": ["rounds=x", "rounds=2"],
    "an empty list": ["sharing.transforms=[]"],
    "text with a sign": ["run_dir=a=b"],
    "one port for all nodes of a machine": [
        "communication={base_port: 65534, nodes_per_process: 3}",
        "mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2, nodes: 1}]",
    ],
    "a crash inside a process": ["communication=inproc", "faults=[crash]"],
    "ports that no other machine needs": ["communication.base_port=65534"],
}

GRAPHS: dict[str, tuple[str, list[str]]] = {
    "one_way.edges": ("3\n0 1\n1 2\n", []),
    "both_ways.edges": ("3\n0 1\n1 0\n1 2\n2 1\n", []),
    "commas.edges": ("3\n0,1\n1, 2\n", []),
    "tabs.edges": ("3\n0\t1\n1\t2\n", []),
    "comments.edges": ("# a graph\n\n3 # nodes\n0 1 # first\n\n1 2\n", []),
    "windows.edges": ("3\r\n0 1\r\n1 2\r\n", []),
    "mark.edges": ("\ufeff3\n0 1\n1 2\n", []),
    "no_last_line_end.edges": ("3\n0 1\n1 2", []),
    "zeros.edges": ("3\n00 01\n01 02\n", []),
    "alone.edges": ("1\n", []),
    "directed.edges": ("3\n0 1\n1 2\n2 0\n2 1\n", ["directed=true"]),
    "apart.edges": ("4\n0 1\n2 3\n", ["allow_disconnected=true"]),
    "plain.adj": ("3\n1 2\n0 2\n0 1\n", []),
    "lonely.adj": ("3\n1\n0\n\n", ["allow_disconnected=true"]),
    "one_way.adj": ("3\n1\n2\n0\n", ["directed=true"]),
    "named.adjacency": ("2\n1\n0\n", []),
    "said.txt": ("3\n1 2\n0 2\n0 1\n", ["type=adjacency"]),
}
"""Graph files by name, and the options that they need."""

WEIGHT_ROWS = "\n".join(
    " ".join("0.5" if i == j else "0.25" if (i - j) % 2 else "0" for j in range(4)) for i in range(4)
)


def good_cases() -> list[Case]:
    """Every case; names are unique."""
    return [*_configurations(), *_graphs(), *_datasets(), *_shipped(), *_words()]


def _configurations() -> Iterator[Case]:
    validate, weights = ("validate", CONFIG, "--no-load"), {"weights.txt": WEIGHT_ROWS}
    for id, (old, new) in EDITS.items():
        text = edited(old, new)
        if "x: 1" in text:  # a directed graph needs other weights
            text = text.replace("x: 1\n", "").replace(SHARING, "push_sum")
        yield Case(f"good config, {id}", validate, (), {CONFIG: text, **weights})
    for id, content in ENCODED.items():
        yield Case(f"good file, {id}", validate, (), {CONFIG: content})
    for id, words in OVERRIDES.items():
        yield Case(f"good override, {id}", (*validate, *words), (), {CONFIG: BASE})


def _graphs() -> Iterator[Case]:
    for name, (text, options) in GRAPHS.items():
        yield Case(f"good graph {name}", ("graph", f"./{name}", *options), (), {name: text})
    triples = "".join(f"{i} {i} 1\n" for i in range(4))
    for id, text in {
        "rows": WEIGHT_ROWS,
        "commas": WEIGHT_ROWS.replace(" ", ","),
        "triples": triples,
    }.items():
        yield Case(f"good weights, {id}", ("graph", "ring.edges", "--weights", "w.txt"), (), {"w.txt": text})


def _datasets() -> Iterator[Case]:
    for kind, files in (("idx, variant: mnist", idx_files()), ("cifar10", cifar_files())):
        written: dict[str, str | bytes] = {f"set/{name}": content for name, content in files.items()}
        written[CONFIG] = edited("name: digits", f"name: {kind}, path: set")
        yield Case(f"good data set, {kind}", ("validate", CONFIG), (), written)


def _shipped() -> Iterator[Case]:
    for path in sorted(set((ROOT / "configs").rglob("*.yaml")) - set((ROOT / "configs/studies").iterdir())):
        words = ("validate", str(path), "--no-load")
        yield Case(f"shipped {path.relative_to(ROOT)}", words)
    for path in sorted((ROOT / "graphs").iterdir()):
        options = ("directed=true",) if "directed" in path.name else ()
        if "1024" not in path.name:
            yield Case(f"shipped {path.relative_to(ROOT)}", ("graph", str(path), *options))


def _words() -> Iterator[Case]:
    commands: dict[str, Sequence[str]] = {
        "everything is loaded": ("validate", CONFIG),
        "a folder with a blank": ("validate", "a b/x.yaml"),
        "an absolute path": ("graph", "./ring.edges", "--weights", "uniform"),
        "a family": ("graph", "torus", "rows=3", "columns=3"),
        "one kind": ("list", "sharings"),
        "one plug-in": ("list", "gossip"),
        "the schema": ("schema",),
        "the benchmarks": ("bench",),
        "a picture of one evaluation": ("plot", "run", "--out", "pictures"),
    }
    row = (
        '{"round": 0, "seconds": 1.0, "metrics": {"accuracy": {"0": 0.5}, "loss": {"0": null}}, '
        '"train_loss": {}, "bytes_sent": {"0": 10}}\n'
    )
    files = {
        "a b/x.yaml": BASE,
        "a b/ring.edges": "4\n0 1\n1 2\n2 3\n",
        "run/evaluations.jsonl": row + row[:9],
    }
    for id, words in commands.items():
        yield Case(f"good words, {id}", words, (), {CONFIG: BASE, **files})
