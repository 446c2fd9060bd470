"""What this layer registers for the hooks of the core (decentnode/core/hooks.py)."""

from decentnode.core.hooks import register

register("commands", interop="decentnode.interop.commands")
