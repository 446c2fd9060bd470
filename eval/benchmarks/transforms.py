"""How fast transforms encode and decode, and whether a compressed round is a shorter one.

    python eval/benchmarks/transforms.py [--small] [--only NAME ...] [--repeats N]

Each transform is timed alone, on what the stages in front of it give, by one thread and in processor seconds,
with a memory copy of the same signal in between. Rates count 4 bytes for each value of the signal. Then whole
chains: encode + degree * (decode + bytes / 125e6) beside degree * 4 d / 125e6, a round over a link of 1 Gb/s.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _report import Target, conclude, median, parser, show
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.transforms.base import Context, Transform
from decentnode.transforms.chain import Chain

SIZES = (100_000, 1_000_000, 10_000_000)
SMALL = 10_000
ROUND_SIZE = 1_000_000
LINK = 125e6
"""Bytes per second of 1 Gb/s."""
DEGREE = 4
SLOWEST = 0.2
"""GB/s that every transform has to reach, but those whose library sets the pace."""
MATRIX_COLUMNS = 100

Spec = tuple[str, dict[str, Any]]
Part = tuple[Callable[[], Payload], Callable[[Payload, Context], Any], int]
"""What the sender does, what a receiver does, and how many indices are coded."""


def spec(name: str, **options: Any) -> Spec:
    """A transform as it is written in YAML."""
    return name, options


TENTH = spec("top_k", fraction=0.1)
TIMED: dict[str, tuple[Spec, ...]] = {
    "top_k": (TENTH,),
    "top_k by change": (spec("top_k", fraction=0.1, by="change"),),
    "chunk_top_k": (spec("chunk_top_k", fraction=0.1),),
    "random_k": (spec("random_k", fraction=0.1),),
    "fragments": (spec("fragments", count=1),),
    "threshold": (spec("threshold", value=0.08),),
    "wavelet": (spec("wavelet"),),
    "dct": (spec("dct"),),
    "fourier": (spec("fourier"),),
    "clip": (spec("clip", norm=1.0),),
    "gaussian_noise": (spec("gaussian_noise", sigma=0.01),),
    "error_feedback of top_k": (spec("error_feedback"), TENTH),
    "cast bf16": (spec("cast", dtype="bf16"),),
    "cast fp16": (spec("cast", dtype="fp16"),),
    "uniform 8": (spec("uniform", bits=8),),
    "uniform 4": (spec("uniform", bits=4),),
    "uniform 1": (spec("uniform", bits=1),),
    "uniform 8 stochastic": (spec("uniform", bits=8, rounding="stochastic"),),
    "qsgd 127": (spec("qsgd", levels=127),),
    "qsgd 4": (spec("qsgd", levels=4),),
    "sign": (spec("sign"),),
    "ternary": (spec("ternary"),),
    "ternary threshold": (spec("ternary", rule="threshold"),),
    "low_rank": (spec("low_rank"),),
    "elias_gamma of a tenth": (TENTH, spec("elias_gamma")),
    "rice of a tenth": (TENTH, spec("rice")),
    "bitmap of a tenth": (TENTH, spec("bitmap")),
    "auto of a tenth": (TENTH, spec("auto")),
    "zstd": (spec("zstd"),),
    "lz4": (spec("lz4"),),
    "fpzip": (spec("fpzip"),),
    "pcodec": (spec("pcodec"),),
}
"""The last stage of each is timed."""
PACED_BY = {
    "wavelet": "PyWavelets",
    "zstd": "zstandard",
    "lz4": "lz4",
    "fpzip": "fpzip",
    "pcodec": "pcodec",
}
"""Libraries that set the pace of a transform."""
ROUNDS: dict[str, tuple[Spec, ...]] = {
    "top_k + rice": (TENTH, spec("rice")),
    "top_k + elias_gamma": (TENTH, spec("elias_gamma")),
    "top_k + qsgd + rice": (TENTH, spec("qsgd"), spec("rice")),
    "top_k + cast + auto": (TENTH, spec("cast"), spec("auto")),
    "chunk_top_k": (spec("chunk_top_k", fraction=0.1),),
    "random_k": (spec("random_k", fraction=0.1),),
    "random_k + uniform": (spec("random_k", fraction=0.1), spec("uniform")),
    "wavelet + top_k + rice": (spec("wavelet"), TENTH, spec("rice")),
    "fourier + top_k + rice": (spec("fourier"), TENTH, spec("rice")),
    "error_feedback + top_k + rice": (spec("error_feedback"), TENTH, spec("rice")),
    "cast": (spec("cast"),),
    "cast + zstd": (spec("cast"), spec("zstd")),
    "uniform": (spec("uniform"),),
    "qsgd": (spec("qsgd"),),
    "sign": (spec("sign"),),
    "ternary": (spec("ternary"),),
    "low_rank": (spec("low_rank"),),
    "zstd": (spec("zstd"),),
    "lz4": (spec("lz4"),),
    "fpzip": (spec("fpzip"),),
    "pcodec": (spec("pcodec"),),
}
"""Chains that somebody would use."""


def signal(elements: int) -> Tensor:
    """Values like those of a model."""
    return 0.05 * torch.randn(elements, generator=torch.Generator().manual_seed(0))


def build(specs: tuple[Spec, ...], elements: int) -> Chain:
    """A chain for one matrix of as many elements; all nodes start from zeros."""
    stages: list[Transform] = [TRANSFORMS.find(name)(**options) for name, options in specs]
    matrix = Entry("weight", torch.Size([elements // MATRIX_COLUMNS, MATRIX_COLUMNS]), 0)
    chain = Chain(stages, elements, parameters=ParameterLayout((matrix,)))
    chain.begin(torch.zeros(elements))
    return chain


def seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of one call, and what it gave."""
    began = time.process_time()
    output = act()
    return time.process_time() - began, output


@dataclass
class Timed:
    """Median processor seconds of what one sender and one of its receivers do, and the bytes between them."""

    encode: float
    decode: float
    copy: float
    payload_bytes: int
    indices: int
    """How many were coded."""


def measure(specs: tuple[Spec, ...], elements: int, repeats: int, alone: bool) -> Timed:
    """Times the last stage `alone` or the whole chain; sender and receiver are two instances."""
    sender, receiver, vector = build(specs, elements), build(specs, elements), signal(elements)
    encodes, decodes, copies = [], [], []
    for round in range(repeats + 1):
        context = Context(seed=1, round=round, sender=3, receiver=5 if sender.per_receiver else None)
        part = last_stage if alone else whole_chain
        encode, decode, count = part(sender, receiver, vector, context)
        spent, payload = seconds(encode)
        encodes.append(spent)
        received = Payload.parse(receiver.layout, payload.buffer.clone())
        decodes.append(seconds(lambda: decode(received, context))[0])  # noqa: B023
        copies.append(seconds(vector.clone)[0])
    # The first round finds caches and allocators cold.
    times = [median(durations[1:]) for durations in (encodes, decodes, copies)]
    return Timed(*times, payload.nbytes, count)


def whole_chain(sender: Chain, receiver: Chain, vector: Tensor, context: Context) -> Part:
    """All stages; nothing has been encoded before in this context, for what was drawn once may be kept."""
    return lambda: sender.encode(vector, context), receiver.decode, 0


def last_stage(sender: Chain, receiver: Chain, vector: Tensor, context: Context) -> Part:
    """The last stage's part on either side, and how many indices it gets."""
    payload = Payload.dense(vector)
    for transform in sender.transforms[:-1]:
        payload = transform.encode(payload, context)
    stage = sender.transforms[-1]
    fields = [f for f in payload.layout.fields if f.name == "indices"]
    count = payload["indices"].numel() if fields else 0
    return lambda: stage.encode(payload, context), receiver.transforms[-1].decode, count


def speed_of(label: str, elements: int, repeats: int) -> dict[str, Any]:
    """One line of the first table."""
    timed = measure(TIMED[label], elements, repeats, alone=True)
    both, wire = timed.encode + timed.decode, 4 * elements / 1e9
    figures: dict[str, Any] = {
        "transform": label,
        "elements": elements,
        "gb_per_s": rounded(wire / both),
        "encode_gb_per_s": rounded(wire / timed.encode),
        "decode_gb_per_s": rounded(wire / timed.decode),
        "copy_gb_per_s": rounded(wire / timed.copy),
        "of_copy": rounded(timed.copy / both),
    }
    if timed.indices:
        figures["encode_million_indices_per_s"] = rounded(timed.indices / timed.encode / 1e6)
        figures["decode_million_indices_per_s"] = rounded(timed.indices / timed.decode / 1e6)
    return figures


def round_of(label: str, elements: int, repeats: int) -> dict[str, Any]:
    """One line of the second table: a node's round over a slow link, with the chain and without."""
    timed = measure(ROUNDS[label], elements, repeats, alone=False)
    dense = DEGREE * 4 * elements / LINK
    whole = timed.encode + DEGREE * (timed.decode + timed.payload_bytes / LINK)
    return {
        "chain": label,
        "elements": elements,
        "encode_ms": rounded(1e3 * timed.encode),
        "decode_ms": rounded(1e3 * timed.decode),
        "bytes": timed.payload_bytes,
        "round_ms": rounded(1e3 * whole),
        "dense_round_ms": rounded(1e3 * dense),
        "of_dense": whole / dense,
    }


def rounded(value: float) -> float:
    """Three digits are worth reading."""
    return float(f"{value:.3g}")


def targets_of(speeds: list[dict[str, Any]], rounds: list[dict[str, Any]]) -> list[Target]:
    """The slowest size of each transform, and each chain's round."""
    targets = []
    for label in dict.fromkeys(figures["transform"] for figures in speeds):
        if label.split()[0] not in PACED_BY:
            slowest = min(f["gb_per_s"] for f in speeds if f["transform"] == label)
            targets.append(Target(f"{label}, GB/s at the slowest size", slowest, "at least", SLOWEST))
    for figures in rounds:
        name = f"{figures['chain']}, round over 1 Gb/s, of the dense one"
        targets.append(Target(name, figures["of_dense"], "at most", 1.0))
    return targets


def repeats_for(elements: int, most: int) -> int:
    """Fewer for long signals."""
    return max(3, min(most, most * ROUND_SIZE // elements))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", action="append", metavar="NAME", help="only this transform or chain")
    options.add_argument("--repeats", type=int, default=15)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    sizes, round_size = ((SMALL,), SMALL) if arguments.small else (SIZES, ROUND_SIZE)
    most = 1 if arguments.small else arguments.repeats
    speeds, rounds = [], []
    for label in (label for label in TIMED if not arguments.only or label in arguments.only):
        for elements in sizes:
            speeds.append(speed_of(label, elements, repeats_for(elements, most)))
            show(speeds[-1])
    for label in (label for label in ROUNDS if not arguments.only or label in arguments.only):
        rounds.append(round_of(label, round_size, repeats_for(round_size, most)))
        show({**rounds[-1], "of_dense": f"{rounds[-1]['of_dense']:.3f}"})
    ratio = {f"{f['transform']} d={f['elements']:g}": f["of_copy"] for f in speeds}
    conclude("transforms", arguments.small, [*speeds, *rounds], ratio, targets_of(speeds, rounds))


if __name__ == "__main__":
    main()
