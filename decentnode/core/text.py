"""Numbers in readable form, and user input as messages quote it."""

from collections.abc import Sequence
from math import isfinite

LARGE = 1000.0
MOST_QUOTED = 40
"""Characters of a user's text that a message quotes."""
UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def readable_bytes(count: float) -> str:
    """Returns three or four digits and a decimal unit: `49.4 MB`."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in UNITS:
        count /= 1000
        if count < 999.5 or unit == UNITS[-1]:
            break
    return f"{count:.{0 if count >= 99.95 else 1}f} {unit}"


def readable_seconds(seconds: float) -> str:
    """Returns `34 ms`, `4.9 s`, `3 min 20 s` or `2 h 05 min`."""
    if 0 < seconds < 0.05:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02} min" if hours else f"{minutes} min {seconds_left:02} s"


def short_time(seconds: float) -> str:
    """Returns three digits and a unit: `250 us`, `12.5 ms`, `1.2 s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0"


def readable_rate(bits: float) -> str:
    """Returns bits per second with three digits and a unit: `2.5 Mbit/s`; `unlimited` for infinity."""
    if not isfinite(bits):
        return "unlimited"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= 0.9995 * size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} bit/s"


def clock_time(seconds: float) -> str:
    """Returns `0:07`, `12:40` or `2:05:09`, for a running clock."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


def simulated_time(virtual: float, wall: float) -> str:
    """Returns `virtual 2 min 13 s, wall 4.0 s, 33x`: the seconds of a simulation, real ones, their ratio."""
    return f"virtual {readable_seconds(virtual)}, wall {readable_seconds(wall)}, {ratio(virtual, wall)}"


def ratio(virtual: float, wall: float) -> str:
    """Returns how much faster than real time a simulation is: `33x`; a dash before any real time."""
    times = virtual / wall if wall > 0 else 0.0
    return "-" if not times else f"{times:.{1 if times < 10 else 0}f}x" if times >= 0.1 else f"{times:.2g}x"


def percent(fraction: float | None) -> str:
    """Returns `97.00` for 0.97, or a dash if unknown."""
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def decimal(value: float | None) -> str:
    """Returns 4 decimals (3 from 100 on), scientific notation outside that range, a dash if unknown."""
    if value is None or not isfinite(value):
        return "-"
    if value != 0 and not 1e-3 <= abs(value) < LARGE:
        return f"{value:.1e}"
    return f"{value:.{4 if abs(value) < LARGE / 10 else 3}f}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Returns `1 node`, `2 nodes`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def shortened(text: str) -> str:
    """Returns the text, or its start and three dots."""
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."


def quoted(text: str) -> str:
    """Returns the text in quotes, shortened, with unprintable characters as escapes."""
    return f"'{printable(text[:MOST_QUOTED])}{'...' if len(text) > MOST_QUOTED else ''}'"


def printable(text: str) -> str:
    """Returns the text with line breaks and control characters as escapes, so it stays in one line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """Returns the message of an error in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]


def ranks_in_words(ranks: Sequence[int], most: int) -> str:
    """Returns `rank 3`, `ranks 3 and 5`, `ranks 3, 5, 9 and 2 others`; names at most `most`."""
    named = list(map(str, ranks[:most]))
    more = len(ranks) - len(named)
    if more:
        named.append(f"{more} {'other' if more == 1 else 'others'}")
    text = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def how_it_ended(status: int) -> str:
    """Returns a process's end as text; `status` is its exit code, or minus the signal that killed it."""
    if status < 0:
        return f"killed by signal {-status}"
    return f"its process ended with exit code {status}"
