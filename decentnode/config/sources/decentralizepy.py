"""A configuration of decentralizepy as one of ours (docs/from_decentralizepy.md)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decentnode.config.sources import driver_arguments, ini_file
from decentnode.config.sources.conversion import OWN, PAGE, Conversion, is_own
from decentnode.config.sources.decentralizepy_keys import (
    BASIS_KEYS,
    CNNS,
    COMMUNICATIONS,
    COMPRESSIONS,
    DATASETS,
    DROPPING,
    KEYS,
    LOSSES,
    MODELS,
    NATURAL,
    OF_USERS,
    PARTITIONS,
    SCHEMES,
    TRAININGS,
    Scheme,
)
from decentnode.config.sources.driver_arguments import Arguments
from decentnode.config.sources.ini_file import IniEntry
from decentnode.config.type_check import unknown
from decentnode.config.yaml_source import SourceLocation

Section = Mapping[str, IniEntry]
OURS = {
    "DATASET": "dataset", "OPTIMIZER_PARAMS": "training.optimizer", "TRAIN_PARAMS": "training",
    "COMMUNICATION": "communication", "SHARING": "sharing",
}  # fmt: skip
"""Our section for each of decentralizepy's that an override may replace."""
REQUIRED = {
    "DATASET": ("dataset_class", "model_class"),
    "OPTIMIZER_PARAMS": ("optimizer_class",),
    "TRAIN_PARAMS": ("training_class",),
    "SHARING": ("sharing_class",),
}
"""Sections that every configuration has, and their keys without a default."""
CODING = ("compress", "compression_package", "compression_class", "float_precision")
ACCUMULATING = ("accumulation", "accumulate_averaging_changes")
INDEX_CODER = "elias_gamma"
SOURCES = ("train", "test")
EPIDEMIC = f"for another one in each round see Epidemic Learning in {PAGE}"
PARTITION_OPTIONS = {"dirichlet": ("alpha", "alpha", 100), "shards": ("shards", "labels_per_node", 1)}
"""The INI key of a partition's option, our name for it, and decentralizepy's default."""


def convert(path: Path, arguments: Arguments, replaced: Sequence[str] = ()) -> Conversion:
    """Converts an INI file and the driver's arguments; raises ConfigError with all defects.

    `replaced` are the keys of ours that overrides set.
    """
    made = Conversion(ini_file.read(path), replaced)
    _check_names(made)
    _dataset(made, made.section("DATASET"))
    _optimizer(made, made.section("OPTIMIZER_PARAMS"), arguments)
    _training(made, made.section("TRAIN_PARAMS"))
    _communication(made, made.section("COMMUNICATION"))
    _sharing(made, made.section("SHARING"))
    _node(made, made.section("NODE"), arguments)
    driver_arguments.add(made, arguments)
    made.document.raise_any()
    return made


def _check_names(made: Conversion) -> None:
    """Raises ConfigError for unknown sections and keys, and for missing ones."""
    for name, line in made.ini.lines.items():
        if name not in KEYS:
            made.defect(line, (f"[{name}]",), unknown("section", name, list(KEYS)))
    made.document.raise_any()  # what is missing may be the one with the unknown name
    for name, classes in REQUIRED.items():
        if name not in made.ini.lines:
            made.defect(1, (), f"no section [{name}]; a configuration of {OWN} has {', '.join(KEYS)}")
            continue
        for key in classes:
            if key not in made.section(name):
                made.defect(made.ini.lines[name], (name, key), "missing; it names the class")
    for name, keys in KEYS.items():
        entries = made.section(name)
        # An optimizer, and classes of one's own, have options of their own.
        if name == "OPTIMIZER_PARAMS" or _is_foreign(entries):
            continue
        for entry in entries.values():
            if entry.key not in keys and name in OURS and made.replaces(OURS[name]):
                made.miss(entry, f"unknown, and {OURS[name]} is that of the command line")
            elif entry.key not in keys:
                made.defect(entry.line, (name, entry.key), unknown("key", entry.key, list(keys)))
    made.document.raise_any()


def _is_foreign(section: Section) -> bool:
    packages = [section[key] for key in ("dataset_package", "sharing_package") if key in section]
    return any(not is_own(package) for package in packages)


def _dataset(made: Conversion, section: Section) -> None:
    made.miss_those_of_the_table("DATASET")
    if name := made.class_of(section, "dataset", list(DATASETS), "dataset"):
        for option, value in DATASETS.get(name, {"name": name}).items():
            made.set(section["dataset_class"], "dataset", option, value=value)
        for entry in section.values():
            if entry.key not in KEYS["DATASET"]:
                made.set(entry, "dataset", entry.key)
        if name == "CIFAR10":
            made.note(section["dataset_class"], f"normalized by its colors; {OWN} takes (x - 0.5) / 0.5")
        _files(made, section, name)
        _partition(made, section, "natural" if name in NATURAL else "iid")
        _validation(made, section)
    if model := made.class_of(section, "model", list(MODELS), "model"):
        ours = CNNS.get(name, "cnn") if model == "CNN" else MODELS.get(model, model)
        made.set(section["model_class"], "model", value=ours)
    if "random_seed" in section:
        made.set(section["random_seed"], "seed")
    if "test_batch_size" in section:
        made.set(section["test_batch_size"], "evaluation", "batch_size")


def _files(made: Conversion, section: Section, name: str) -> None:
    if "images_dir" in section and name == "Celeba":
        _path(made, section["images_dir"], "images_path")
    elif "images_dir" in section:
        made.miss(section["images_dir"], f"no option of {name}")
    if name in OF_USERS:
        for key, option in {"train_dir": "train_path", "test_dir": "test_path"}.items():
            if key in section:
                _path(made, section[key], option)
        return
    folders = [section[key] for key in ("train_dir", "test_dir") if key in section]
    if folders:
        _path(made, folders[0], "path")
    if len({folder.text for folder in folders}) > 1:
        made.note(folders[1], f"one folder for both, that of {folders[0].key}")


def _path(made: Conversion, entry: IniEntry, option: str) -> None:
    made.set(entry, "dataset", option, value=entry.text)
    made.resolve(("dataset", option))


def _partition(made: Conversion, section: Section, usual: str) -> None:
    given, sizes = section.get("partition_niid"), section.get("sizes")
    name = usual if given is None else _partition_name(made, given)
    if name == "natural":
        made.set(section["dataset_class"], "dataset", "partition", "name", value=name)
    key = ("dataset", "partition")
    for partition, (ini_key, option, default) in PARTITION_OPTIONS.items():
        entry = section.get(ini_key)
        if given is not None and name == partition:
            made.set(entry or given, *key, option, value=default if entry is None else entry.value)
        elif entry is not None:
            made.miss(entry, f"no option of the partition {name}")
    if sizes is not None and name == "iid":
        made.set(sizes, *key, "name", value="sizes")
        made.set(sizes, *key, "sizes")
    elif sizes is not None:
        made.miss(sizes, f"the partition {name} decides them")


def _validation(made: Conversion, section: Section) -> None:
    source, size = section.get("validation_source"), section.get("validation_size")
    if source is None or source.value is None:
        if size is not None:
            made.miss(size, "without validation_source not used")
        return
    if source.text.lower() not in SOURCES:
        made.defect(
            source.line, (source.section, source.key), unknown("part", source.text.lower(), list(SOURCES))
        )
    elif size is None:
        what = "missing; it is the fraction of the samples that validation_source names"
        made.defect(source.line, (source.section, "validation_size"), what)
    else:
        made.set(source, "dataset", "validation", "source", value=source.text.lower())
        made.set(size, "dataset", "validation", "size")
    if source.text.lower() == "train":
        made.note(source, f"drawn before the partition; each node of {OWN} draws from its own samples")


def _partition_name(made: Conversion, given: IniEntry) -> str:
    text = given.text.capitalize() if given.text.lower() in ("true", "false") else given.text
    if text not in PARTITIONS:
        made.defect(given.line, (given.section, given.key), unknown("partition", text, list(PARTITIONS)))
    name = PARTITIONS.get(text, "iid")
    made.set(given, "dataset", "partition", "name", value=name)
    if text == "simple":
        made.note(given, "iid, which shuffles")
    if name == "shards":
        made.note(given, f"each node has exactly so many labels; slices of {OWN} often hold more")
    return name


def _optimizer(made: Conversion, section: Section, arguments: Arguments) -> None:
    named, package = section["optimizer_class"], section.get("optimizer_package")
    outside = package is not None and package.text.partition(".")[0] not in ("torch", OWN)
    name = f"{package.text}:{named.text}" if package is not None and outside else named.text
    made.set(named, "training", "optimizer", "name", value=name)
    for entry in section.values():
        if entry.key not in KEYS["OPTIMIZER_PARAMS"]:
            made.set(entry, "training", "optimizer", entry.key)
    has_state = named.text != "SGD" or "momentum" in section
    if has_state and arguments.others.get("-ro", "1") != "0":
        made.note(named, f"keeps its state; {OWN} makes a new optimizer in each round, unless -ro is 0")


def _training(made: Conversion, section: Section) -> None:
    made.miss_those_of_the_table("TRAIN_PARAMS")
    name = made.class_of(section, "training", list(TRAININGS), "training")
    if name in TRAININGS and name != "Training":
        made.note(section["training_class"], "the transform top_k itself accumulates changes")
    elif ":" in name:
        what = "local steps of your own are no plug-in here; use Training, or the library (docs/library.md)"
        made.defect(section["training_class"].line, ("TRAIN_PARAMS", "training_class"), what)
    epochs = "full_epochs" in section and section["full_epochs"].value is True
    for key, ours in (("rounds", "epochs_per_round" if epochs else "steps_per_round"), ("batch_size",) * 2):
        # Both are 1 in decentralizepy where they are not given.
        place = SourceLocation(section[key].line if key in section else made.ini.lines["TRAIN_PARAMS"])
        made.put(("training", ours), section[key].value if key in section else 1, place)
    if not epochs:
        # Rounds of minibatches shuffle anew there; an epoch in each round is the same here and there.
        line = section["full_epochs"].line if "full_epochs" in section else made.ini.lines["TRAIN_PARAMS"]
        made.put(("training", "minibatches"), "reshuffle", SourceLocation(line))
    dataset = made.section("DATASET").get("dataset_class")
    if dataset is not None and dataset.text in DROPPING:
        made.set(dataset, "training", "drop_last", value=True)
    if loss := section.get("loss_class") or section.get("loss"):
        made.set(loss, "training", "loss", value=LOSSES.get(loss.text, loss.text))


def _communication(made: Conversion, section: Section) -> None:
    name = made.class_of(section, "comm", list(COMMUNICATIONS), "communication")
    if name:
        made.set(section["comm_class"], "communication", "name", value=COMMUNICATIONS.get(name, name))
    if "offset" in section:
        made.set(section["offset"], "communication", "base_port")
    if "recv_timeout" in section and name == "TCP_ACK":
        made.set(section["recv_timeout"], "failures", "deadline")
    elif "recv_timeout" in section:
        made.miss(section["recv_timeout"], "only the interval of a poll, in milliseconds")


def _node(made: Conversion, section: Section, arguments: Arguments) -> None:
    if "timeout" in section:
        made.set(section["timeout"], "failures", "deadline")
        made.note(section["timeout"], "the longest wait for a silent neighbor; late models are not mixed")
    degree, nodes = section.get("graph_degree"), arguments.nodes
    if degree is None:
        return
    if arguments.graph is not None or not nodes or made.replaces("graph"):
        made.miss(degree, f"the graph decides; {EPIDEMIC}")
        return
    made.set(degree, "graph", "name", value="epidemic_oracle")
    made.set_argument(nodes, "graph", "nodes")
    made.set(degree, "graph", "degree")
    made.note(degree, f"another graph in each round; see Epidemic Learning in {PAGE}")


def _sharing(made: Conversion, section: Section) -> None:
    if not _is_foreign(section):
        made.miss_those_of_the_table("SHARING")
    name = made.class_of(section, "sharing", list(SCHEMES), "sharing")
    if not name:
        return
    named = section["sharing_class"]
    if name not in SCHEMES:
        made.set(named, "sharing", "name", value=name)
        for entry in section.values():
            if not entry.key.startswith("sharing_"):
                made.set(entry, "sharing", entry.key)
        return
    scheme = SCHEMES[name]
    _begin(made, named, scheme)
    for key in scheme.required:
        if key not in section:
            made.defect(named.line, (named.section, key), f"missing; {name} has no default for it")
    for key, default in scheme.defaults.items():
        if key not in section:
            made.set(named, "sharing", *scheme.keys[key], value=default)
    for entry in section.values():
        _option(made, entry, scheme)
    _change(made, section, scheme)
    _basis(made, section, scheme)
    _coding(made, section, scheme)


def _begin(made: Conversion, named: IniEntry, scheme: Scheme) -> None:
    made.set(named, "sharing", "name", value=scheme.name)
    for key, value in scheme.fixed.items():
        made.set(named, "sharing", key, value=value)
    for index, options in enumerate(scheme.transforms):
        for key, value in options.items():
            made.set(named, "sharing", "transforms", index, key, value=value)
    if scheme.name == "stc":
        made.note(
            named, "between peers; with a server set sharing.server, and a graph that is a star around it"
        )


def _option(made: Conversion, entry: IniEntry, scheme: Scheme) -> None:
    """One entry of SHARING that belongs to the scheme itself."""
    if entry.key.startswith("sharing_") or entry.key in CODING or not KEYS["SHARING"][entry.key].yaml:
        return
    value = entry.value
    if entry.key == "change_based_selection":
        value = "change" if value is True else "magnitude"
    if entry.key in scheme.keys and value is not None:
        made.set(entry, "sharing", *scheme.keys[entry.key], value=value)
    elif entry.key in scheme.keys:
        made.miss(entry, "the default is taken")
    elif scheme.by is None or entry.key not in (*ACCUMULATING, "change_based_selection"):
        made.miss(entry, f"no option of {scheme.name}")
    elif value == "magnitude":
        made.note(entry, f"{scheme.name} selects by change")


def _basis(made: Conversion, section: Section, scheme: Scheme) -> None:
    if any(key in scheme.keys for key in BASIS_KEYS):
        entry = section.get("wavelet", section["sharing_class"])
        what = f"periodic at the ends; {OWN} mirrors the model there, for a few more coefficients"
        made.note(entry, what)


def _change(made: Conversion, section: Section, scheme: Scheme) -> None:
    """Ranks by all change since a value was last sent, by that of training, or by that of the round."""
    if scheme.by is None:
        return
    options: Any = made.document.value["sharing"]
    for part in scheme.by[:-1]:
        options = options[part]
    if options.get(scheme.by[-1]) == "magnitude":
        return
    accumulates, mixing = (key in section and section[key].value is True for key in ACCUMULATING)
    by = ("change" if mixing else "training") if accumulates else "round"
    if by != "change":
        made.set(section.get("accumulation", section["sharing_class"]), "sharing", *scheme.by, value=by)


def _coding(made: Conversion, section: Section, scheme: Scheme) -> None:
    """The transforms of `compress`."""
    compress, named = section.get("compress"), section.get("compression_class")
    asked = compress is not None and compress.value is True
    if scheme.codes_itself or not asked or named is None:
        why = f"{scheme.name} has a coding of its own" if scheme.codes_itself else "without compress not used"
        for entry in (section[key] for key in CODING if key in section):
            if scheme.codes_itself or entry.key != "compress":
                made.miss(entry, why)
        return
    known = made.class_of(section, "compression", list(COMPRESSIONS), "sharing.transforms")
    for transform in COMPRESSIONS.get(known, ()):
        if transform == INDEX_CODER and not scheme.indices:
            made.note(named, f"without {transform}, because no indices are sent")
        elif transform == INDEX_CODER and scheme.name == "jwins":
            made.set(named, "sharing", "index_coder", value=transform)
        else:
            key = ("sharing", "transforms", len(made.document.value["sharing"].get("transforms", ())))
            made.set(named, *key, "name", value=transform)
            if transform == "fpzip" and "float_precision" in section:
                made.set(section["float_precision"], *key, "precision")
