"""A configuration of decentralizepy as one of ours (docs/from_decentralizepy.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decentnode.config.type_check import unknown, unknown_key
from decentnode.config.yaml_source import SourceLocation
from decentnode.core.text import quoted
from decentnode.errors import MISSING_KEY, Defect
from decentnode.graph.files import read_graph
from decentnode.interop import driver_arguments, ini_file
from decentnode.interop.computed_sharings import COMPUTED
from decentnode.interop.conversion import OWN, PAGE, Conversion, is_decentralizepy
from decentnode.interop.decentralizepy_keys import (
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
    REFUSED,
    SCHEMES,
    TRAININGS,
    Scheme,
)
from decentnode.interop.driver_arguments import Arguments
from decentnode.interop.ini_file import IniEntry

Section = Mapping[str, IniEntry]
OURS = {
    "DATASET": "dataset", "OPTIMIZER_PARAMS": "training.optimizer", "TRAIN_PARAMS": "training",
    "COMMUNICATION": "communication", "SHARING": "sharing",
}  # fmt: skip
"""The section here for each section of decentralizepy that an override may replace."""
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
    _sharing(made, made.section("SHARING"), arguments)
    arguments = _complete_graph(made, arguments)
    _node(made, made.section("NODE"), arguments)
    driver_arguments.add(made, arguments)
    made.document.raise_any()
    return made


def _check_names(conversion: Conversion) -> None:
    """Raises ConfigError for unknown sections and keys, and for missing ones."""
    for name, line in conversion.ini.lines.items():
        if name not in KEYS:
            conversion.report(line, Defect((f"[{name}]",), unknown("section", name, list(KEYS))))
    conversion.document.raise_any()  # what is missing may be the one with the unknown name
    for name, classes in REQUIRED.items():
        if name not in conversion.ini.lines:
            what = f"no section [{name}]; a configuration of {OWN} has {', '.join(KEYS)}"
            conversion.report(1, Defect((), what))
            continue
        for key in classes:
            if key not in conversion.section(name):
                conversion.report(
                    conversion.ini.lines[name], Defect((name, key), MISSING_KEY, "it names the class")
                )
    for name, keys in KEYS.items():
        entries = conversion.section(name)
        # An optimizer, and classes of one's own, have options of their own.
        if name == "OPTIMIZER_PARAMS" or _is_foreign(entries):
            continue
        for entry in entries.values():
            if entry.key not in keys and name in OURS and conversion.replaces(OURS[name]):
                conversion.miss(entry, f"unknown, and {OURS[name]} is that of the command line")
            elif entry.key not in keys:
                conversion.report(entry.line, unknown_key((name, entry.key), "key", list(keys)))
    conversion.document.raise_any()


def _is_foreign(section: Section) -> bool:
    packages = [section[key] for key in ("dataset_package", "sharing_package") if key in section]
    return any(not is_decentralizepy(package) for package in packages)


def _dataset(conversion: Conversion, section: Section) -> None:
    conversion.miss_those_of_the_table("DATASET")
    if name := conversion.class_of(section, "dataset", list(DATASETS), key="dataset"):
        for option, value in DATASETS.get(name, {"name": name}).items():
            conversion.set(section["dataset_class"], "dataset", option, value=value)
        for entry in section.values():
            if entry.key not in KEYS["DATASET"]:
                conversion.set(entry, "dataset", entry.key)
        if name == "CIFAR10":
            conversion.note(
                section["dataset_class"], f"normalized by its colors; {OWN} takes (x - 0.5) / 0.5"
            )
        _files(conversion, section, name)
        _partition(conversion, section, "natural" if name in NATURAL else "iid")
        _validation(conversion, section)
    if model := conversion.class_of(section, "model", list(MODELS), key="model"):
        ours = CNNS.get(name, "cnn") if model == "CNN" else MODELS.get(model, model)
        conversion.set(section["model_class"], "model", value=ours)
    if "random_seed" in section:
        conversion.set(section["random_seed"], "seed")
    if "test_batch_size" in section:
        conversion.set(section["test_batch_size"], "evaluation", "batch_size")


def _files(conversion: Conversion, section: Section, name: str) -> None:
    if "images_dir" in section and name == "Celeba":
        _path(conversion, section["images_dir"], "images_path")
    elif "images_dir" in section:
        conversion.miss(section["images_dir"], f"no option of {name}")
    if name in OF_USERS:
        for key, option in {"train_dir": "train_path", "test_dir": "test_path"}.items():
            if key in section:
                _path(conversion, section[key], option)
        return
    folders = [section[key] for key in ("train_dir", "test_dir") if key in section]
    if folders:
        _path(conversion, folders[0], "path")
    if len({folder.text for folder in folders}) > 1:
        conversion.note(folders[1], f"one folder for both, that of {folders[0].key}")


def _path(conversion: Conversion, entry: IniEntry, option: str) -> None:
    conversion.set(entry, "dataset", option, value=entry.text)
    conversion.resolve(("dataset", option))


def _partition(conversion: Conversion, section: Section, usual: str) -> None:
    given, sizes = section.get("partition_niid"), section.get("sizes")
    name = usual if given is None else _partition_name(conversion, given)
    if name == "natural":
        conversion.set(section["dataset_class"], "dataset", "partition", "name", value=name)
    key = ("dataset", "partition")
    for partition, (ini_key, option, default) in PARTITION_OPTIONS.items():
        entry = section.get(ini_key, section.get("shard") if ini_key == "shards" else None)
        if entry is not None and entry.key == "shard":
            conversion.note(entry, f"taken for shards; {OWN} has no such key and stops there")
        if given is not None and name == partition:
            conversion.set(entry or given, *key, option, value=default if entry is None else entry.value)
        elif entry is not None:
            conversion.miss(entry, f"no option of the partition {name}")
    if sizes is not None and name == "iid":
        conversion.set(sizes, *key, "name", value="sizes")
        conversion.set(sizes, *key, "sizes")
    elif sizes is not None:
        conversion.miss(sizes, f"the partition {name} decides them")


def _validation(conversion: Conversion, section: Section) -> None:
    source, size = section.get("validation_source"), section.get("validation_size")
    if source is None or source.value is None:
        if size is not None:
            conversion.miss(size, "without validation_source not used")
        return
    if source.text.lower() not in SOURCES:
        what = unknown("part", source.text.lower(), list(SOURCES))
        conversion.report(source.line, Defect((source.section, source.key), what))
    elif size is None:
        what = "it is the fraction of the samples that validation_source names"
        conversion.report(source.line, Defect((source.section, "validation_size"), MISSING_KEY, what))
    else:
        conversion.set(source, "dataset", "validation", "source", value=source.text.lower())
        conversion.set(size, "dataset", "validation", "size")
    if source.text.lower() == "train":
        conversion.note(source, f"drawn before the partition; each node of {OWN} draws from its own samples")


def _partition_name(conversion: Conversion, entries: IniEntry) -> str:
    text = entries.text if entries.truth is None else str(entries.truth)
    if text not in PARTITIONS:
        what = unknown("partition", text, list(PARTITIONS))
        conversion.report(entries.line, Defect((entries.section, entries.key), what))
    name = PARTITIONS.get(text, "iid")
    conversion.set(entries, "dataset", "partition", "name", value=name)
    if text == "simple":
        conversion.note(entries, "iid, which shuffles")
    if name == "shards":
        conversion.note(entries, f"each node has exactly so many labels; slices of {OWN} often hold more")
    return name


def _optimizer(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    named, package = section["optimizer_class"], section.get("optimizer_package")
    outside = package is not None and package.text.partition(".")[0] not in ("torch", OWN)
    name = f"{package.text}:{named.text}" if package is not None and outside else named.text
    conversion.set(named, "training", "optimizer", "name", value=name)
    for entry in section.values():
        if entry.key not in KEYS["OPTIMIZER_PARAMS"]:
            conversion.set(entry, "training", "optimizer", entry.key)
    has_state = named.text != "SGD" or "momentum" in section
    if has_state and arguments.others.get("-ro", "1") != "0":
        conversion.note(named, f"keeps its state; {OWN} makes a new optimizer in each round, unless -ro is 0")


def _training(conversion: Conversion, section: Section) -> None:
    conversion.miss_those_of_the_table("TRAIN_PARAMS")
    name = conversion.class_of(section, "training", list(TRAININGS), key="training")
    if name in TRAININGS and name != "Training":
        conversion.note(section["training_class"], "the transform top_k itself accumulates changes")
    elif ":" in name:
        what = "local steps of your own are no plug-in here; use Training, or the library (docs/library.md)"
        conversion.report(section["training_class"].line, Defect(("TRAIN_PARAMS", "training_class"), what))
    epochs = conversion.is_true(section, "full_epochs")
    for key, ours in (("rounds", "epochs_per_round" if epochs else "steps_per_round"), ("batch_size",) * 2):
        # Both are 1 in decentralizepy where they are not given.
        place = SourceLocation(section[key].line if key in section else conversion.ini.lines["TRAIN_PARAMS"])
        conversion.put(("training", ours), section[key].value if key in section else 1, place)
    if not epochs:
        # Rounds of minibatches shuffle anew there; an epoch in each round is the same here and there.
        line = (
            section["full_epochs"].line if "full_epochs" in section else conversion.ini.lines["TRAIN_PARAMS"]
        )
        conversion.put(("training", "minibatches"), "reshuffle", SourceLocation(line))
    dataset = conversion.section("DATASET").get("dataset_class")
    if dataset is not None and dataset.text in DROPPING:
        conversion.set(dataset, "training", "drop_last", value=True)
    if loss := section.get("loss_class") or section.get("loss"):
        conversion.set(loss, "training", "loss", value=LOSSES.get(loss.text, loss.text))


def _communication(conversion: Conversion, section: Section) -> None:
    name = conversion.class_of(section, "comm", list(COMMUNICATIONS), key="communication")
    if name:
        conversion.set(section["comm_class"], "communication", "name", value=COMMUNICATIONS.get(name, name))
    if "offset" in section:
        conversion.set(section["offset"], "communication", "base_port")
    if "recv_timeout" in section and name == "TCP_ACK":
        conversion.set(section["recv_timeout"], "failures", "deadline")
    elif "recv_timeout" in section:
        conversion.miss(section["recv_timeout"], "only the interval of a poll, in milliseconds")


def _node(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    if "timeout" in section:
        conversion.set(section["timeout"], "failures", "deadline")
        conversion.note(
            section["timeout"], "the longest wait for a silent neighbor; late models are not mixed"
        )
    degree, nodes = section.get("graph_degree"), arguments.nodes
    if degree is None:
        return
    if arguments.graph is not None or not nodes or conversion.replaces("graph"):
        conversion.miss(degree, f"the graph decides; {EPIDEMIC}")
        return
    conversion.set(degree, "graph", "name", value="epidemic_oracle")
    conversion.set_argument(nodes, "graph", "nodes")
    conversion.set(degree, "graph", "degree")
    conversion.note(degree, f"another graph in each round; see Epidemic Learning in {PAGE}")


def _sharing(conversion: Conversion, section: Section, arguments: Arguments) -> None:
    if not _is_foreign(section):
        conversion.miss_those_of_the_table("SHARING")
        if _is_refused(conversion, section):
            return
    name = conversion.class_of(section, "sharing", list(SCHEMES), key="sharing")
    if not name:
        return
    named = section["sharing_class"]
    if name not in SCHEMES:
        conversion.set(named, "sharing", "name", value=name)
        for entry in section.values():
            if not entry.key.startswith("sharing_"):
                conversion.set(entry, "sharing", entry.key)
        return
    scheme = SCHEMES[name]
    _begin(conversion, named, scheme)
    for key in scheme.required:
        if key not in section:
            wanted = f"{name} has no default for it"
            conversion.report(named.line, Defect((named.section, key), MISSING_KEY, wanted))
    for key, default in scheme.defaults.items():
        if key not in section:
            conversion.set(named, "sharing", *scheme.keys[key], value=default)
    for entry in section.values():
        _option(conversion, entry, scheme)
    if name in COMPUTED:
        COMPUTED[name](conversion, section, arguments)
    _change(conversion, section, scheme)
    _basis(conversion, section, scheme)
    _coding(conversion, section, scheme)


def _is_refused(conversion: Conversion, section: Section) -> bool:
    """Reports a class that has no counterpart; its module may be all that tells it from another one."""
    named = [section[key] for key in ("sharing_class", "sharing_package") if key in section]
    for entry in named:
        name = entry.text.rpartition(".")[2]
        if name in REFUSED and not conversion.replaces("sharing"):
            why, nearest = REFUSED[name]
            what = f"no counterpart of {quoted(name)}: {why}"
            conversion.report(entry.line, Defect((entry.section, entry.key), what, nearest))
            return True
    return False


def _complete_graph(conversion: Conversion, arguments: Arguments) -> Arguments:
    """Replaces the star of `Synchronous`, whose center averages the changes of all nodes and its own."""
    named = conversion.section("SHARING").get("sharing_class")
    if named is None or named.text != "Synchronous" or conversion.replaces("sharing"):
        return arguments
    nodes = arguments.nodes
    if arguments.graph is not None and not nodes:
        nodes = len(read_graph(str(arguments.graph)))
    if conversion.replaces("graph") or not nodes:
        return arguments
    conversion.set(named, "graph", "name", value="fully_connected")
    conversion.set(named, "graph", "nodes", value=nodes)
    conversion.note(
        named, "a star whose center averages all changes, which is the mean of all models; here without it"
    )
    return replace(arguments, graph=None)


def _begin(conversion: Conversion, entries: IniEntry, scheme: Scheme) -> None:
    conversion.set(entries, "sharing", "name", value=scheme.name)
    for key, value in scheme.fixed.items():
        conversion.set(entries, "sharing", key, value=value)
    for index, options in enumerate(scheme.transforms):
        for key, value in options.items():
            conversion.set(entries, "sharing", "transforms", index, key, value=value)
    if scheme.name == "stc":
        conversion.note(
            entries, "between peers; with a server set sharing.server, and a graph that is a star around it"
        )


def _option(conversion: Conversion, entry: IniEntry, scheme: Scheme) -> None:
    """Converts one entry of SHARING that belongs to the scheme itself."""
    if entry.key.startswith("sharing_") or entry.key in CODING or not KEYS["SHARING"][entry.key].yaml:
        return
    if entry.key in scheme.computed:
        return
    if entry.key == "save_shared":
        if conversion.is_true({entry.key: entry}, entry.key):
            conversion.set(entry, "records", "coordinates", "every", value=1)
        return
    value = entry.value
    if entry.key in ("change_based_selection", "layerwise"):
        value = conversion.is_true({entry.key: entry}, entry.key)
    if entry.key == "change_based_selection":
        value = "change" if value else "magnitude"
    if entry.key in scheme.keys and value is not None:
        conversion.set(entry, "sharing", *scheme.keys[entry.key], value=value)
    elif entry.key in scheme.keys:
        conversion.miss(entry, "the default is taken")
    elif scheme.by is None or entry.key not in (*ACCUMULATING, "change_based_selection"):
        conversion.miss(entry, f"no option of {scheme.name}")
    elif value == "magnitude":
        conversion.note(entry, f"{scheme.name} selects by change")


def _basis(conversion: Conversion, section: Section, scheme: Scheme) -> None:
    if any(key in scheme.keys for key in BASIS_KEYS):
        entry = section.get("wavelet", section["sharing_class"])
        what = f"periodic at the ends; {OWN} mirrors the model there, for a few more coefficients"
        conversion.note(entry, what)


def _change(conversion: Conversion, section: Section, scheme: Scheme) -> None:
    """Sets by which change values are ranked: since they were last sent, in training, or in the round."""
    if scheme.by is None:
        return
    options: Any = conversion.document.value["sharing"]
    for part in scheme.by[:-1]:
        options = options[part]
    if options.get(scheme.by[-1]) == "magnitude":
        return
    accumulates, mixing = (conversion.is_true(section, key) for key in ACCUMULATING)
    by = ("change" if mixing else "training") if accumulates else "round"
    if by != "change":
        conversion.set(section.get("accumulation", section["sharing_class"]), "sharing", *scheme.by, value=by)
    else:
        conversion.note(
            section["accumulate_averaging_changes"],
            f"the change since a value was sent; {OWN} adds that of the local steps before it",
        )


def _coding(conversion: Conversion, section: Section, scheme: Scheme) -> None:
    """Adds the transforms of `compress`."""
    asked, named = conversion.is_true(section, "compress"), section.get("compression_class")
    if scheme.codes_itself or not asked or named is None:
        why = f"{scheme.name} has a coding of its own" if scheme.codes_itself else "without compress not used"
        for entry in (section[key] for key in CODING if key in section):
            if scheme.codes_itself or entry.key != "compress":
                conversion.miss(entry, why)
        return
    known = conversion.class_of(section, "compression", list(COMPRESSIONS), key="sharing.transforms")
    for transform in COMPRESSIONS.get(known, ()):
        if transform == INDEX_CODER and not scheme.indices:
            conversion.note(named, f"without {transform}, because no indices are sent")
        elif transform == INDEX_CODER and scheme.name == "jwins":
            conversion.set(named, "sharing", "index_coder", value=transform)
        else:
            key = ("sharing", "transforms", len(conversion.document.value["sharing"].get("transforms", ())))
            conversion.set(named, *key, "name", value=transform)
            if transform == "fpzip" and "float_precision" in section:
                conversion.set(section["float_precision"], *key, "precision")
