"""LEAF's datasets in their format on disk, and files that are not."""

import json
import os
import pickle
import re
from importlib import util

import numpy as np
import pytest
import torch

from decentnode.datasets import Celeba, Femnist, Reddit, Sent140, Shakespeare, samples
from decentnode.datasets.leaf_texts import CHARACTERS
from decentnode.datasets.partition import Natural
from decentnode.errors import DatasetError
from decentnode.node.experiment import Experiment, vector_test
from tests.datasets.test_datasets import message_of
from tests.support.in_process import Nodes


def in_order(users, key):
    return [value for user in users.values() for value in user[key]]


@pytest.mark.parametrize("files", [1, 4])
def test_pixels_are_stored_without_loss_and_writers_are_groups(tmp_path, files):
    """In one file as LEAF writes, and in one for each user as decentralizepy does."""
    written = samples.femnist(tmp_path)
    samples.write_leaf(tmp_path, written, files)
    if files > 1:
        # decentralizepy writes a number where LEAF has a list.
        for file in tmp_path.glob("*/*.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"num_samples": 12}))
    loaded = Femnist(path=str(tmp_path)).load(0)
    for part, users in ((loaded.train, written["train"]), (loaded.test, written["test"])):
        assert (part.inputs.double() / 255).flatten(1).tolist() == in_order(users, "x")
        assert part.labels.tolist() == in_order(users, "y")
        assert part.groups.tolist() == np.repeat(range(4), 12).tolist()
    shares = Natural().split(loaded.train, 2, 1)
    assert [sorted(set(loaded.train.groups[share].tolist())) for share in shares] == [[0, 2], [1, 3]]


def test_characters_have_the_ids_of_decentralizepy_and_one_label(tmp_path):
    written = samples.shakespeare(tmp_path)
    loaded = Shakespeare(train_path=str(tmp_path / "train"), test_path=str(tmp_path / "test")).load(0)
    for part, users in ((loaded.train, written["train"]), (loaded.test, written["test"])):
        assert ["".join(CHARACTERS[i] for i in row) for row in part.inputs.tolist()] == in_order(users, "x")
        assert [CHARACTERS[i] for i in part.labels.tolist()] == in_order(users, "y")
    # A dictionary from a list with two braces of each kind keeps the last of both.
    assert (loaded.num_classes, loaded.train.inputs.dtype, loaded.train.has_ids) == (92, torch.uint8, True)
    assert [Shakespeare().arrays(_user(c))[1].item() for c in "d{}>"] == [0, 87, 89, 91]


def _user(character):
    return Shakespeare.user([character * 80], [character])


def test_comments_are_lines_whose_label_is_their_last_word(tmp_path):
    written = samples.reddit(tmp_path / "data")
    loaded = Reddit(path=str(tmp_path / "data")).load(0)
    expected, labels = [], []
    for user in written["train"].values():
        for lines, comment in zip(user["x"], user["y"], strict=True):
            for line, targets in zip(lines, comment["target_tokens"], strict=True):
                words = [word for word in targets if word != "<PAD>"]
                expected.append([samples.WORDS.index(word) for word in line])
                labels.append(samples.WORDS.index(words[-1]))
    assert (loaded.train.inputs.tolist(), loaded.train.labels.tolist()) == (expected, labels)
    assert loaded.num_classes == len(samples.WORDS)
    # The sample's vocabulary is what Python's pickle reads, and any protocol is read.
    path = tmp_path / "vocab" / "reddit_vocab.pck"
    vocabulary = pickle.loads(path.read_bytes())
    assert vocabulary == {
        "vocab": {word: place for place, word in enumerate(samples.WORDS)},
        "size": 10000, "unk_symbol": 1, "pad_symbol": 0,
    }  # fmt: skip
    for protocol in (2, 3, 4, 5):
        path.write_bytes(pickle.dumps(vocabulary, protocol=protocol))
        assert torch.equal(Reddit(path=str(tmp_path / "data")).load(0).test.labels, loaded.test.labels)
    path.write_bytes(pickle.dumps({"vocab": os.system}))
    with pytest.raises(DatasetError, match=rf"^dataset.vocabulary_path: {path}: no vocabulary of LEAF \("):
        Reddit(path=str(tmp_path / "data")).load(0)


def test_a_line_of_padding_alone_is_no_sample(tmp_path):
    written = samples.reddit(tmp_path / "data", users=1, samples=1)
    user = written["train"]["user_0"]
    user["x"][0].append(["<PAD>"] * 10)
    user["y"][0]["target_tokens"].append(["<PAD>"] * 10)
    samples.write_leaf(tmp_path / "data", written)
    assert len(Reddit(path=str(tmp_path / "data")).load(0).train) == 2


def test_faces_are_read_from_jpeg_or_png(tmp_path, monkeypatch):
    from PIL import Image

    written = samples.celeba(tmp_path)
    loaded = Celeba(path=str(tmp_path)).load(0)
    is_bright = loaded.train.inputs.float().mean((1, 2, 3)) > 128
    assert loaded.shape == (3, 84, 84)
    assert torch.equal(is_bright.long(), loaded.train.labels)
    folder = tmp_path / "raw" / "img_align_celeba"
    name = in_order(written["train"], "x")[0]
    with Image.open(folder / name) as image:
        image.save((folder / name).with_suffix(".png"))
    (folder / name).unlink()
    assert torch.equal(Celeba(path=str(tmp_path)).load(0).train.inputs, loaded.train.inputs)
    (folder / name).with_suffix(".png").write_bytes(b"no image")
    assert f"user '1000': {folder / name}"[:-4] in message_of(Celeba(path=str(tmp_path)))
    (folder / name).with_suffix(".png").unlink()
    assert message_of(Celeba(path=str(tmp_path))).endswith(f"user '1000': no image {name!r} in {folder}")
    elsewhere = Celeba(path=str(tmp_path), images_path="nowhere")
    assert message_of(elsewhere) == "dataset.images_path: nowhere: no directory with images"
    monkeypatch.setattr("decentnode.datasets.image_folder.find_spec", lambda name: None)
    expected = "dataset: celeba needs Pillow; run: pip install 'decentnode[tasks]'"
    assert message_of(elsewhere) == expected and util.find_spec("PIL")


def test_tweets_are_hashed_words(tmp_path):
    written = samples.sent140(tmp_path)
    loaded = Sent140(path=str(tmp_path), length=6, buckets=500).load(0)
    assert loaded.train.labels.tolist() == in_order(written["train"], "y")
    assert loaded.train.inputs[:, :3].min() >= 1 and loaded.train.inputs.max() <= 500
    texts = [fields[4] for fields in in_order(written["train"], "x")]
    ids_of = {}
    for text, ids in zip(texts, loaded.train.inputs.tolist(), strict=True):
        assert ids_of.setdefault(text, ids) == ids
    # love, day, a comma, really, an exclamation mark, and one that fills up
    assert ids_of["love day, really!"][5:] == [0] and len(set(map(tuple, ids_of.values()))) == len(ids_of)
    (tmp_path / "test" / "all_data_0_test.json").write_text(
        json.dumps({"users": ["u"], "user_data": {"u": {"x": [["", "", "", "", "word"]] * 2, "y": [4, 0]}}})
    )
    assert Sent140(path=str(tmp_path)).load(0).test.labels.tolist() == [1, 0]


IMAGE = [0.0] * 784
TEXT = "a" * 80


def file_of(x, y, users=("u",), data="u"):
    return json.dumps({"users": list(users), "num_samples": [1], "user_data": {data: {"x": x, "y": y}}})


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        (Femnist, '{"users": ["u"', "{file}: no JSON file of LEAF: Input data was truncated"),
        (Femnist, "[1, 2]", "{file}: no JSON file of LEAF: Expected `object`, got `array`"),
        (Femnist, "\xff", "{file}: no JSON file of LEAF: "),
        (Femnist, '{"users": []}', "{file}: no JSON file of LEAF: Object missing required field `user_data`"),
        (Femnist, file_of([IMAGE], [1], users=["v"]), "{file}: user 'u' of user_data is not in users"),
        (Femnist, file_of([IMAGE], [1], users="uv"), "{file}: user 'v' has no samples in user_data"),
        (Femnist, file_of([IMAGE], [1, 2]), "{file}: user 'u': 2 labels y for 1 inputs x"),
        (Femnist, file_of(["a"], [1]),
         "{file}: user 'u': no samples of LEAF femnist: Expected `array`, got `str` - at `$.x[0]`"),
        (Femnist, file_of([IMAGE[1:]], [1]), "{file}: user 'u': x[0] has 783 pixels, an image has 784"),
        (Femnist, file_of([IMAGE, [0.2, *IMAGE[1:]], [0.5, *IMAGE[1:]]], [1, 2, 3]),
         "{file}: user 'u': x[2][0] is 0.5; pixels are 0/255, 1/255, ... 255/255"),
        (Femnist, file_of([IMAGE] * 2, [61, 62]), "{file}: user 'u': y[1] is 62; it must be one of 0..61"),
        (Femnist, file_of([], []), "{folder}: no sample in 1 files"),
        (Shakespeare, file_of([TEXT, TEXT[1:]], ["a", "b"]),
         "{file}: user 'u': x[1] has 79 characters; it must have 80"),
        (Shakespeare, file_of([TEXT], ["ab"]), "{file}: user 'u': y[0] has 2 characters; it must have 1"),
        (Shakespeare, file_of([TEXT, TEXT[1:] + "|"], ["a", "b"]),
         "{file}: user 'u': x[1] has '|', which is none of the 92 characters"),
        (Shakespeare, file_of([TEXT], ["€"]),
         "{file}: user 'u': y[0] has '€', which is none of the 92 characters"),
        (Reddit, file_of([[["a"] * 9]], [{"target_tokens": [["a"] * 10]}]),
         "{file}: user 'u': line 0 of x has 9 words; it must have 10"),
        (Reddit, file_of([[["a"] * 10]], [{"target_tokens": []}]),
         "{file}: user 'u': 0 lines of target_tokens for 1 lines of x"),
        (Sent140, file_of([["a", "b"]], [1]), "{file}: user 'u': x[0] has 2 fields; the text is field 5"),
        (Sent140, file_of([["a"] * 5], [2]), "{file}: user 'u': y[0] is 2; it must be one of 0..1"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_leafs_is_refused(tmp_path, kind, content, expected):
    getattr(samples, kind.name)(tmp_path / "data")
    file = tmp_path / "data" / "train" / "all_data_0_train.json"
    file.write_bytes(content.encode("latin-1" if content == "\xff" else "utf-8"))
    message = message_of(kind(path=str(tmp_path / "data")))
    assert message.startswith(f"dataset.path: {expected.format(file=file, folder=file.parent)}"), message


def test_a_directory_that_is_missing_is_named(tmp_path):
    samples.femnist(tmp_path)
    copy = tmp_path / "train" / "copy.json"
    copy.write_bytes((tmp_path / "train" / "all_data_0_train.json").read_bytes())
    twice = f"dataset.path: {copy}: user 'f0000_00' is also in {tmp_path}/train/all_data_0_train.json"
    assert message_of(Femnist(path=str(tmp_path))) == twice
    (tmp_path / "test" / "all_data_0_test.json").unlink()
    expected = f"dataset.path: {tmp_path}/test: no directory with JSON files of LEAF"
    assert message_of(Femnist(path=str(tmp_path))) == expected
    nowhere = Femnist(path=str(tmp_path), test_path="nowhere")
    assert message_of(nowhere) == "dataset.test_path: nowhere: no directory with JSON files of LEAF"
    empty = message_of(Femnist(path=str(tmp_path / "x")))
    assert re.match(
        rf"dataset.path: no complete set of LEAF femnist files in {tmp_path}/x; make them with: git", empty
    )


COMMON = (
    "name: trial\nrounds: 2\ngraph: {name: ring, nodes: 2}\nsharing: gossip\ncommunication: inproc\n"
    "training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 4, steps_per_round: 12}\n"
)


@pytest.mark.parametrize(
    ("name", "model"),
    [("femnist", "logistic_regression"), ("shakespeare", "{name: shakespeare_lstm, hidden: 8}")],
)
def test_it_trains_from_its_files(name, model, tmp_path):
    getattr(samples, name)(tmp_path / "data")
    path = tmp_path / "run.yaml"
    path.write_text(f"{COMMON}dataset: {{name: {name}, path: data, partition: natural}}\nmodel: {model}\n")
    experiment = Experiment.from_yaml(path)
    test, plan = vector_test(experiment), experiment.plan
    before = test.run(plan.samples, plan.batch_size)
    nodes = Nodes(experiment, tmp_path / "run").begin()
    nodes.run(0, 2)
    assert all(node.evaluation.scores["loss"] < before["loss"] for node in nodes.nodes)
