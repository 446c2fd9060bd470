"""Damage at random: whatever is changed in a file, it is read, or refused in words.

DECENTNODE_EXAMPLES says how often each kind of file is damaged.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decentnode.config import loader as config
from decentnode.datasets.idx import Idx
from decentnode.errors import BadInput
from decentnode.formats.reader import EvaluationRow, read_lines
from decentnode.graph.families import Ring
from decentnode.graph.files import read_graph
from decentnode.graph.mixing import WeightFile
from tests.corpus.bad_files import ROW
from tests.corpus.formats import IMAGES, LABELS, images, labels

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "configs" / "reference.yaml").read_text().replace("../graphs", str(ROOT / "graphs"))
LINES = REFERENCE.splitlines()
FEW = settings(
    max_examples=int(os.environ.get("DECENTNODE_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

SCALARS = (
    "", "null", "-1", "0", "7", "1e999", "0.5", ".nan", ".inf", "true", "x", "'", '"', "&a 1", "*a",
    "!!str 1", "!x", "[]", "[", "{}", "{", "[1, [2]]", "{a: 1}", "{name: ring}", "{name: [1]}", "[null]",
    "- 1", "? 1", "|", "> 1", "9" * 40, "a" * 300, "~", "~nobody/x", "..", "@", "%", "`", "\\", "\t",
    "'\\0'", '"\\ud800"', "0x", "1:2", "# 1", "auto", "ring", "file", "choco", "top_k", "[top_k, cast]",
    "[{name: cast, dtype: 3}]", "json:JSONDecoder", ":",
)  # fmt: skip
"""What is put in the place of a value."""


@st.composite
def mutated_configurations(draw) -> str:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[index].partition(":")
        kind = draw(st.sampled_from(["value", "value", "drop", "double", "indent", "letters", "swap"]))
        if kind == "value":
            lines[index] = f"{key}{colon} {draw(st.sampled_from(SCALARS))}"
        elif kind == "drop":
            lines[index] = ""
        elif kind == "double":
            lines.insert(index, lines[index])
        elif kind == "indent":
            lines[index] = " " * draw(st.integers(0, 5)) + lines[index].strip()
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[index], lines[other] = lines[other], lines[index]
        else:
            place = draw(st.integers(0, len(lines[index])))
            lines[index] = lines[index][:place] + draw(st.text(max_size=3)) + lines[index][place:]
    return "\n".join(lines) + "\n"


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """The bytes with some changed, left out or put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        count = draw(st.sampled_from([0, 1, 1, 4, 30]))
        content[place : place + count] = draw(st.binary(max_size=4))
    return bytes(content)


def refused_in_words(attempt) -> None:
    """Asserts that it ends well, or with BadInput and lines of text; pytest reports any other error."""
    try:
        attempt()
    except BadInput as error:
        assert error.lines and all(map(str.isprintable, error.lines))


@pytest.mark.slow
@FEW
@given(mutated_configurations())
def test_a_mutated_configuration_is_read_or_refused(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused_in_words(lambda: config.load(path))


@FEW
@given(damaged(REFERENCE.encode()))
def test_a_damaged_configuration_is_read_or_refused(tmp_path, content):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    refused_in_words(lambda: config.load(path))


@pytest.mark.parametrize("name", ["g.edges", "g.adj", "g.txt"])
@FEW
@given(damaged(b"5\n0 1\n1 2 # edge\n2 3\n3 4\n\n4 0\n"), st.booleans())
def test_a_damaged_graph_file_is_read_or_refused(tmp_path, name, content, directed):
    path = tmp_path / name
    path.write_bytes(content)
    refused_in_words(lambda: read_graph(str(path), directed=directed))


@FEW
@given(damaged(b"0.5 0.25 0 0.25\n0.25 0.5 0.25 0\n0 0.25 0.5 0.25\n0.25 0 0.25 0.5\n"))
def test_a_damaged_file_of_weights_is_read_or_refused(tmp_path, content):
    path = tmp_path / "w.txt"
    path.write_bytes(content)
    refused_in_words(lambda: WeightFile(str(path)).check(Ring(4)))


@pytest.mark.parametrize("name", [IMAGES, LABELS])
@FEW
@given(st.data())
def test_a_damaged_idx_file_is_read_or_refused(tmp_path, name, data):
    whole = {IMAGES: images(3), LABELS: labels(3)}
    test = {path.replace("train", "t10k"): content for path, content in whole.items()}
    content = data.draw(damaged(whole[name]))
    for path, written in (whole | test | {name: content}).items():
        (tmp_path / path).write_bytes(written)
    refused_in_words(lambda: Idx(variant="mnist", path=str(tmp_path)).load(0))


@FEW
@given(damaged((ROW * 2).encode()))
def test_damaged_evaluations_are_read_or_refused(tmp_path, content):
    path = tmp_path / "evaluations.jsonl"
    path.write_bytes(content)
    refused_in_words(lambda: read_lines(path, EvaluationRow))
