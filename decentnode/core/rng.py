"""Random choices keyed by their purpose, independent of the order of draws.

The same (seed, purpose, counters) gives the same numbers in every process and after a resume. The generator
is counter-based, and its key is a hash of those words (Salmon et al., 2011, "Parallel random numbers: as easy
as 1, 2, 3", Philox).
"""

import numpy as np
import xxhash


def key(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit number that depends on every argument; usable as a seed of any generator."""
    words = f"{seed}/{purpose}/" + "/".join(map(str, counters))
    return xxhash.xxh3_64_intdigest(words.encode()) >> 1


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """A Philox generator for one purpose, for instance `generator(seed, "shuffle", rank, epoch)`."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters)))
