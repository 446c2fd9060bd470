"""Resolved files of runs that were begun before settings were nested: the same settings, the same hashes."""

from pathlib import Path

import pytest
import yaml

from decentnode.config import loader
from decentnode.launcher.recovery.fingerprint import fingerprint

SAVED = Path(__file__).parent / "saved"
HASHES = {
    "choco": (
        "750c9c50250f26e1ccd12d930eb2855a9d34ed5ae91a6667521a2bb4666ff11a",
        "893ab2ac4fc8a51311d101fed9196e81e6768bbdcf40051f8a0b9ede0f272243",
    ),
    "ddp": (
        "b9b86d9d282bc2b0408b38292a68c01a37f5e7facfe716f05f6014d03f914c9c",
        "4a5fd5b07414b61833a7d918a4e273c77be3f821de655df4bc0eb806a212cf43",
    ),
}
"""The digest that machines compare, and the fingerprint in `run.json`, for the version `saved`."""


@pytest.mark.parametrize("name", HASHES)
def test_a_run_of_the_last_version_has_the_hashes_of_this_one(name, monkeypatch):
    """Its checkpoints and its `run.json` hold them, so otherwise it could not resume."""
    monkeypatch.setattr(loader, "__version__", "saved")
    settings = loader.load(SAVED / f"{name}.yaml")
    graph = settings.graph.make()
    assert (loader.digest(settings, graph), fingerprint(settings, graph)) == HASHES[name]


@pytest.mark.parametrize("name", HASHES)
def test_a_resolved_file_has_the_same_keys_as_before(name):
    path = SAVED / f"{name}.yaml"
    assert loader.resolved(loader.load(path)) == yaml.safe_load(path.read_text())
