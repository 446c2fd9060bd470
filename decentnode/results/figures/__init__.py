"""Pictures by matplotlib: to import anything here needs the extra `figures`."""

from decentnode.results.extra import need

need("matplotlib", "figures")
