"""Files that other programs wrote: a byte order mark at the start, and blanks that are none."""

import codecs

import pytest

from decentnode.config import yaml_source
from decentnode.datasets.hugging_face import class_names
from decentnode.datasets.prepared_files import TextFile
from decentnode.errors import ConfigError
from decentnode.graph.text import read_lines
from decentnode.interop.device_traces import read_behavior
from decentnode.interop.round_trips import read_matrix
from decentnode.node.faults.virtual_faults import NodeAvailability
from decentnode.simulation.quantities import _rows
from decentnode.training.device_classes import read_classes
from decentnode.training.pace import PaceSettings


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("1.0 2\n1 3\n", lambda path: PaceSettings(step_seconds=1, trace_path=str(path)).trace),
        ("class,factor\nphone,4\n", read_classes),
        ("rank,from,to\n0,1,inf\n", lambda path: NodeAvailability(path=str(path)).online),
        ("1 2\n3 4\n", lambda path: [*_rows(path)]),
        ("0 1\n1 0\n", lambda path: read_matrix(path, "s", complete=False).seconds.tolist()),
        ('{"7": {"active": [1]}}', read_behavior),
        ("0 1\n", lambda path: read_lines(str(path))),
        ("ein Satz\n", lambda path: [*TextFile.at(path).texts()]),
        ('{"features": {"c": {"names": ["a"]}}}', lambda path: class_names(path.parent, "c")),
        ("rounds: 3\n", lambda path: yaml_source.read(path).value),
    ],
)
def test_a_byte_order_mark_is_no_content(tmp_path, content, read):
    """Windows programs write one."""
    path = tmp_path / "dataset_info.json"
    path.write_text(content)
    wanted = read(path)
    path.write_bytes(codecs.BOM_UTF8 + content.encode())
    assert read(path) == wanted


@pytest.mark.parametrize("blank", ["\u00a0", "\u2009", "\u200b", "\u3000"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rounds:~3\nseed: 1\n", 1),
        ("rounds: 3~\n", 1),
        ("seed: 1\ntraining:\n~ optimizer: SGD\n", 3),
        ("seed: 1\nmodel:~{name: mlp}\n", 2),
        ("graph: {name: ring,~nodes: 4}\n", 1),
        ("seed: 1\ndataset:~digits\nmodel: mlp\n", 2),
        ("name: a~b\n", 1),
    ],
)
def test_an_invisible_character_instead_of_a_blank_is_named(tmp_path, text, line, blank):
    """Word processors and web pages have them, and nobody sees them."""
    path = tmp_path / "x.yaml"
    path.write_text(text.replace("~", blank))
    with pytest.raises(ConfigError) as raised:
        yaml_source.read(path)
    what = f"an invisible character, U+{ord(blank):04X}, instead of a blank"
    assert str(raised.value) == f"{path}:{line}: {what}; type a blank, or put text that needs it in quotes"
    path.write_text(f"name: 'a{blank}b'  # {blank}\nrounds: 3\n")
    assert yaml_source.read(path).value == {"name": f"a{blank}b", "rounds": 3}
