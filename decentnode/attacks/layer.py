"""What this layer registers for the hooks of the core (decentnode/core/hooks.py)."""

from decentnode.core.hooks import register

register("commands", attacks="decentnode.attacks.commands")
register("run", attacks="decentnode.attacks.attackers:AttackProcess")
