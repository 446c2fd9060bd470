"""Places the machines of one experiment as actors of a Ray cluster, one on each node of it.

    python eval/clusters/ray_start.py CONFIG.yaml MACHINES [key=value ...]

Ray only places and repeats: an actor that dies with its node is made again, and repeats its command.
"""

import os
import secrets
import subprocess
import sys
from functools import partial

from decentnode.core.process_setup import die_with

try:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs a package; run: pip install ray", file=sys.stderr)
    sys.exit(2)

DEADLINE = 300
"""Seconds until nodes for all machines must be there."""


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Machine:
    """One machine of the run."""

    def address(self) -> str:
        """Returns the address of its host."""
        return str(ray.util.get_node_ip_address())

    def run(self, words: list[str], place: dict[str, str]) -> int:
        """Runs its part; returns the exit code."""
        command = [sys.executable, "-m", "decentnode", "run", *words]
        # Where Ray alone fails, and not its node, nothing may go on that is then started again.
        end = partial(die_with, os.getpid())
        return subprocess.run(command, env=os.environ | place, preexec_fn=end, check=False).returncode


def main() -> None:
    """Repeats the command on all machines until every one of them has ended well."""
    config, count, *overrides = sys.argv[1:]
    words, size = [config, "--continue", *overrides], int(count)
    place = {"DECENTNODE_JOB": "ray", "DECENTNODE_SECRET": secrets.token_hex(32)}
    ray.init()
    # A machine whose node is lost waits for another one: two on one node would have one address.
    group = placement_group([{"CPU": 1}] * size, strategy="STRICT_SPREAD")
    if not group.wait(DEADLINE):
        sys.exit(f"no {size} nodes of Ray with a free processor each within {DEADLINE} s")
    places = [PlacementGroupSchedulingStrategy(group, bundle) for bundle in range(size)]
    machines = [Machine.options(scheduling_strategy=one).remote() for one in places]
    codes = [1] * size
    while any(codes):
        where = ray.get(machines[0].address.remote())
        place |= {"DECENTNODE_MACHINES": count, "DECENTNODE_RENDEZVOUS": f"{where}:29400"}
        parts = [place | {"DECENTNODE_MACHINE": str(machine)} for machine in range(size)]
        codes = ray.get([one.run.remote(words, part) for one, part in zip(machines, parts, strict=True)])
        if 2 in codes:
            sys.exit("a machine has refused its input (exit code 2); its lines are above")


if __name__ == "__main__":
    main()
