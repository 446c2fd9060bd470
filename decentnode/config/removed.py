"""Removed keys and values of configurations, with their replacements."""

from decentnode.errors import Key

TEST_FAULTS = {
    "corrupt": "Corrupt", "duplicate": "Duplicate", "full_disk": "FullDisk", "hang": "Hang",
    "raise": "Raise", "reorder": "Reorder",
}  # fmt: skip
INSTEAD = {
    "failures.on_loss: wait": (
        "use on_loss: continue with restart.attempts, or on_loss: stop and `decentnode resume`"
    ),
    **{
        f"faults: {name}": f"it is for tests: more_faults:{cls}, in eval/reliability of the repository"
        for name, cls in TEST_FAULTS.items()
    },
}
"""Replacements by `key` or `key: value`; the key of a plug-in's name is the key of its section."""


def removed(key: Key, value: object = None) -> str:
    """Returns `was removed; use ...` for a key, or for a value of it; empty where nothing was removed."""
    names = ".".join(part for part in key if isinstance(part, str))
    entry = names if value is None else f"{names}: {value}"
    said = "was removed" if value is None else f"'{value}' was removed"
    return f"{said}; {INSTEAD[entry]}" if entry in INSTEAD else ""
