"""Delivers messages over SimGrid's network, for against_simgrid.py; runs with the python that has SimGrid.

Reads one JSON object per line: `model` (null, cm02, lv08), `uplink` and `downlink` (bits per second by rank;
null: unlimited), `latency` (seconds, a matrix), `bandwidth` (bits per second, a matrix, or null), `messages`
([seconds, source, target, bytes]). Writes for each the seconds at which the messages arrive, as a list.
Each network has a process of its own, because SimGrid has one engine in a process.
"""

import json
import os
import sys
from collections import defaultdict

import simgrid

UNLIMITED = 1e20
"""Bytes per second of a link without a limit."""
MODELS = {None: "CM02", "cm02": "CM02", "lv08": "LV08"}


def arrivals(case: dict) -> list[float]:
    """Returns when each message arrives, in seconds."""
    model, nodes = case["model"], len(case["uplink"])
    settings = [f"network/model:{MODELS[model]}", "surf/precision:1e-12", "maxmin/precision:1e-9"]
    settings += [f"network/crosstraffic:{int(model == 'lv08')}", "contexts/factory:thread"]
    settings += ["network/loopback-bw:1e20"]
    engine = simgrid.Engine(["", "--log=root.thres:critical", *(f"--cfg={each}" for each in settings)])
    zone = simgrid.NetZone.create_full_zone("zone")

    def rate(bits: float | None) -> float:
        return UNLIMITED if bits is None else bits / 8

    hosts = [zone.create_host(f"host {n}", 1e9) for n in range(nodes)]
    up = [zone.create_link(f"up {n}", rate(case["uplink"][n])).seal() for n in range(nodes)]
    down = [zone.create_link(f"down {n}", rate(case["downlink"][n])).seal() for n in range(nodes)]
    for i in range(nodes):
        for j in range(nodes):
            if i == j:
                continue
            bits = None if case["bandwidth"] is None else case["bandwidth"][i][j]
            own = zone.create_link(f"own {i} {j}", rate(bits))
            # Without TCP no latency may weigh on shares: then the sender waits for it.
            own.set_latency(case["latency"][i][j] if model else 0.0)
            route = [simgrid.LinkInRoute(link) for link in (up[i], own.seal(), down[j])]
            zone.add_route(hosts[i].netpoint, hosts[j].netpoint, None, None, route, False)
    zone.seal()
    arrived = [0.0] * len(case["messages"])
    by_link = defaultdict(list)
    for number, (time, source, target, size) in enumerate(case["messages"]):
        by_link[source, target].append((time, number, size))

    def send_all(source: int, target: int) -> None:
        latency = 0.0 if model else case["latency"][source][target]
        for time, number, size in by_link[source, target]:
            simgrid.this_actor.sleep_until(max(time + latency, engine.clock))
            simgrid.Comm.sendto(hosts[source], hosts[target], size)
            arrived[number] = engine.clock

    for source, target in by_link:
        simgrid.Actor.create(f"{source} to {target}", hosts[source], send_all, source, target)
    engine.run()
    return arrived


for line in sys.stdin:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        # SimGrid writes to standard output.
        os.dup2(2, 1)
        with os.fdopen(writing, "w") as pipe:
            json.dump(arrivals(json.loads(line)), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    print(answer or "null", flush=True)
