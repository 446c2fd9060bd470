"""The tables of keys in the docs are those of the settings, and each key is one in them."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_keys_in_the_docs_are_those_of_the_settings():
    spec = importlib.util.spec_from_file_location("key_tables", ROOT / "docs" / "key_tables.py")
    key_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(key_tables)
    page = key_tables.PAGE.read_text()
    assert key_tables.with_tables(page) == page, "make them anew: python docs/key_tables.py"
    assert page.count("<!-- keys: ") == 3
