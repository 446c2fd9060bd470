"""Libraries of the extras, imported when something needs them."""

import importlib
from importlib.util import find_spec
from typing import Any

from decentnode.errors import BadInput


def need(module: str, extra: str = "studies") -> Any:
    """A module of an extra; raises BadInput with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BadInput(missing(module.split(".")[0], extra) or str(error)) from error


def missing(package: str, extra: str) -> str:
    """A line with what installs a package, without importing it; empty where it is installed."""
    if find_spec(package) is not None:
        return ""
    return f"this needs {package}; run: pip install 'decentnode[{extra}]'"
