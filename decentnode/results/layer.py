"""What this layer registers for the hooks of the core (decentnode/core/hooks.py)."""

from decentnode.core.hooks import register

register("commands", results="decentnode.results.commands")
register(
    "run",
    writers="decentnode.results.writers.process:RowWriters",
    figures="decentnode.results.run_figures:RunFigures",
)
register(
    "pictures",
    graph="decentnode.results.figures.requested:draw_rounds",
    network="decentnode.results.figures.requested:draw_modelled",
    partition="decentnode.results.figures.plots:draw_partition",
    privacy="decentnode.results.figures.plots_privacy:draw_heat_map",
)
