"""What this layer registers for the hooks of the core (decentnode/core/hooks.py)."""

from decentnode.core.hooks import register

register("commands", studies="decentnode.studies.commands")
register("work", sweep="decentnode.studies.api:work_on_sweep")
