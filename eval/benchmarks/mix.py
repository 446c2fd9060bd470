"""How near mixing comes to the memory's own speed, on a GPU where there is one and else on the CPU.

    python eval/benchmarks/mix.py [--small] [--elements N ...] [--repeats N]

out <- w_0 x + sum_k w_k r_k for some degrees, beside a copy of the same vector and beside a loop of torch's
own operations, which goes over the sum once per neighbor. Rates count what has to be read and written: each
source once, and the sum once. They take turns in one run: on a GPU timed by its own events, on the CPU in
processor seconds of one thread. `call` is all that a node waits for until it knows that the sum is finite;
on the CPU the mix has that in it, and the loop does not look.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _report import Target, conclude, median, median_ratio, parser, show
from torch import Tensor

from decentnode.sharing.blocks.weighted_sum import fused_on, native, weighted_sum

GPU_SIZES, CPU_SIZES, SMALL = (1_000_000, 1 << 26, 1 << 28), (1_000_000, 1 << 24), (10_000,)
LARGE = 256e6
"""Bytes of a vector for which the targets hold; on the CPU a quarter."""
CASES = ((1, torch.float32), (2, torch.float32), (4, torch.float32), (8, torch.float32), (2, torch.bfloat16))
"""Degrees, and what the neighbors' vectors are made of."""
AT_ONCE = 10
"""Calls between two events of a GPU, so that it never waits for the host."""

Terms = list[tuple[float, Tensor]]


def draw_terms(degree: int, dtype: torch.dtype, elements: int, device: torch.device) -> Terms:
    """The own vector in fp32 and those of the neighbors, all of one weight."""
    weight = 1 / (degree + 1)
    dtypes = (torch.float32, *[dtype] * degree)
    return [(weight, torch.randn(elements, device=device).to(d)) for d in dtypes]


def naive_sum(terms: Terms, out: Tensor) -> None:
    """A product, and one more pass over the sum for each neighbor."""
    torch.mul(terms[0][1], terms[0][0], out=out)
    for weight, x in terms[1:]:
        out.add_(x, alpha=weight)


def wall_seconds(act: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def processor_seconds(act: Callable[[], object]) -> float:
    """Processor seconds of one call, which other programs disturb less."""
    began = time.process_time()
    act()
    return time.process_time() - began


def device_seconds(act: Callable[[], object]) -> float:
    """Seconds of one of several calls in a row, by the events of the GPU."""
    cuda: Any = torch.cuda
    began, ended = (cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(AT_ONCE):
        act()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3 / AT_ONCE


def mixing(terms: Terms, out: Tensor) -> Callable[[], object]:
    """What is measured: on a GPU the kernel alone where there is one, else all that `weighted_sum` does."""
    fused = fused_on(out.device) if out.is_cuda else None
    if fused is None or fused(terms, out) is None:
        return lambda: weighted_sum(terms, out)
    from decentnode.sharing.blocks.triton_sum import begin_sum

    flag = torch.zeros(1, dtype=torch.int32, device=out.device)
    return lambda: begin_sum(terms, out, flag)


def measure(
    degree: int, dtype: torch.dtype, elements: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """One line of the table."""
    terms = draw_terms(degree, dtype, elements, device)
    out, seconds = (
        torch.empty(elements, device=device),
        device_seconds if device.type == "cuda" else processor_seconds,
    )
    x = terms[0][1]
    acts = {
        "mix": mixing(terms, out),
        "copy": lambda: out.copy_(x),
        "loop": lambda: naive_sum(terms, out),
    }
    times: dict[str, list[float]] = {name: [] for name in (*acts, "call")}
    for _ in range(repeats + 1):
        for name, act in acts.items():
            times[name].append(seconds(act))
        times["call"].append(wall_seconds(lambda: weighted_sum(terms, out)))
    # The first time finds caches cold and the kernel not compiled.
    mix, copy, loop, call = (seconds[1:] for seconds in times.values())
    moved = 4 * elements + sum(source.nbytes for _, source in terms)
    rates = [moved / s for s in mix], [2 * x.nbytes / s for s in copy]
    return {
        "device": device.type,
        "elements": elements,
        "degree": degree,
        "sources": str(dtype).removeprefix("torch."),
        "mix_gb_per_s": median([rate / 1e9 for rate in rates[0]]),
        "copy_gb_per_s": median([rate / 1e9 for rate in rates[1]]),
        "call_us": median([1e6 * s for s in call]),
        "of_copy": median_ratio(*rates),
        "times_loop": median_ratio(loop, mix),
    }


def targets_of(figures: Sequence[dict[str, Any]]) -> list[Target]:
    """What large vectors in fp32 have to reach on a GPU; the CPU's loop has to be slower."""
    table = []
    for f in figures:
        on_gpu = f["device"] == "cuda"
        if f["sources"] != "float32" or 4 * f["elements"] < (LARGE if on_gpu else LARGE / 4):
            continue
        where = f"{f['device']}, {f['elements']} values, degree {f['degree']}"
        if on_gpu:
            table.append(Target(f"{where}: of a copy's bandwidth", f["of_copy"], "at least", 0.85))
        elif native():
            table.append(Target(f"{where}: of a copy's bandwidth", f["of_copy"], "at least", 0.9))
        if f["degree"] == 2:
            least = 1.8 if on_gpu else 1.0
            table.append(Target(f"{where}: times torch's loop", f["times_loop"], "at least", least))
    return table


def arguments() -> argparse.Namespace:
    """What was asked for."""
    made = parser(__doc__)
    made.add_argument("--elements", type=int, nargs="+", help="lengths of the vectors")
    made.add_argument("--repeats", type=int, default=11, help="how often each is timed")
    return made.parse_args()


def main() -> None:
    """Measures all cases of all sizes."""
    asked = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        print("no GPU here: measures how the CPU mixes", flush=True)
    torch.set_num_threads(1)
    sizes = asked.elements or (SMALL if asked.small else GPU_SIZES if device.type == "cuda" else CPU_SIZES)
    figures = []
    for elements in sizes:
        for degree, dtype in CASES:
            figures.append(measure(degree, dtype, elements, 2 if asked.small else asked.repeats, device))
            show(figures[-1])
    ratio = {
        f"{f['elements']} values, degree {f['degree']}, {f['sources']}, of a copy": f["of_copy"]
        for f in figures
    }
    conclude("mix", asked.small, figures, ratio, targets_of(figures))


if __name__ == "__main__":
    main()
