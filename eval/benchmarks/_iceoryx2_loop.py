"""A loop over iceoryx2 (Eclipse Foundation, 0.10), the fastest published transport in shared memory.

Each node publishes its model and subscribes to those of the others. Nothing is copied: the mix is written
into a sample on loan, and read from the samples of the others. Waiting nodes poll, which is the fastest way.
"""

import ctypes
import os
import time
from typing import Any

import torch
from _raw_exchange import RawCase, Stopwatch, mix_all
from torch import Tensor

LIMIT = 60.0
"""Seconds that a node waits for another one, at most."""


def iceoryx2_loop(case: RawCase, rank: int) -> dict[str, float]:
    """All rounds of one node; raises TimeoutError where a model does not come."""
    import iceoryx2 as iox2

    iox2.set_log_level(iox2.LogLevel.Error)
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)

    def service(of: int) -> Any:
        name = iox2.ServiceName.new(f"{case.endpoints[of]}")
        builder = node.service_builder(name).publish_subscribe(iox2.Slice[ctypes.c_float])
        builder = builder.max_publishers(1).max_subscribers(case.nodes).history_size(1)
        return builder.subscriber_max_buffer_size(2).subscriber_max_borrowed_samples(2).open_or_create()

    services = [service(of) for of in range(case.nodes)]
    publisher = services[rank].publisher_builder().initial_max_slice_len(case.elements)
    publisher = publisher.max_loaned_samples(2).create()
    subscribers = {j: services[j].subscriber_builder().create() for j in case.others(rank)}

    def receive(j: int) -> Any:
        until = time.monotonic() + LIMIT
        while (sample := subscribers[j].receive()) is None:
            os.sched_yield()
            if time.monotonic() > until:
                raise TimeoutError(f"no model of rank {j} after {LIMIT:g} s")
        return sample

    def as_tensor(sample: Any) -> Tensor:
        memory = (ctypes.c_float * case.elements).from_address(sample.payload_ptr)
        return torch.frombuffer(memory, dtype=torch.float32)

    watch, upcoming = Stopwatch(case.warm_up), publisher.loan_slice_uninit(case.elements)
    as_tensor(upcoming).fill_(float(rank))
    for round in range(case.rounds):
        watch.round(round)
        own, current = as_tensor(upcoming), upcoming
        # On loan before the current one is sent, so it is other memory.
        upcoming = publisher.loan_slice_uninit(case.elements)
        current.assume_init().send()
        samples = {j: receive(j) for j in subscribers}
        models = [own if j == rank else as_tensor(samples[j]) for j in range(case.nodes)]
        mix_all(models, as_tensor(upcoming))
        for sample in samples.values():
            sample.delete()
    measured = watch.stop(as_tensor(upcoming))
    upcoming.assume_init().send()
    for j in subscribers:
        receive(j).delete()
    return measured
