"""HTML of runs and studies for notebooks: inline styles alone, on the page's background, light or dark."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

BORDER = "1px solid rgba(128, 128, 128, 0.45)"
STATE_COLORS = {"finished": "#009E73", "running": "#0072B2", "incomplete": "#D55E00"}
CELL = (
    "color: inherit; background: none; border: none; padding: 2px 10px 2px 0; text-align: left; "
    "vertical-align: top;"
)
FRAME = (
    "border-radius: 6px; padding: 10px 14px; width: fit-content; max-width: 100%; box-sizing: border-box; "
    "font-size: 13px; line-height: 1.45;"
)
COLUMNS = "display: flex; flex-wrap: wrap; gap: 6px 24px; align-items: flex-start; margin-top: 6px;"
TABLE = "color: inherit; border: none; border-collapse: collapse; margin: 0; font-size: 13px;"
PALE = "opacity: 0.75;"


def card(title: str, state: str, line: str, body: str, picture: bytes = b"") -> str:
    """One card: its title with a state, a line below, and beside each other the body and a picture (PNG).

    All but `body`, which is HTML, are plain texts.
    """
    dot = f'<span style="color: {STATE_COLORS[state]};">&#9679;</span> {escape(state)}' if state else ""
    encoded = b64encode(picture).decode()
    image = (
        f'<img alt="curve by round" style="width: 317px; max-width: 100%; margin: 0; background: none;" '
        f'src="data:image/png;base64,{encoded}">'
        if picture
        else ""
    )
    return (
        f'<div style="border: {BORDER}; {FRAME}">'
        f'<div><b style="font-size: 15px;">{escape(title)}</b>&ensp;{dot}</div>'
        f'<div style="{PALE}">{escape(line)}</div><div style="{COLUMNS}">'
        f'<div style="min-width: 0; overflow-x: auto;">{body}</div>{image}</div></div>'
    )


def pairs(content: Sequence[tuple[str, str]]) -> str:
    """A table of names with their values, as HTML."""
    rows = (
        f'<tr style="background: none;"><td style="{CELL}{PALE}">{escape(name)}</td>'
        f'<td style="{CELL}overflow-wrap: anywhere;">{escape(value)}</td></tr>'
        for name, value in content
    )
    return f'<table style="{TABLE}">{"".join(rows)}</table>'


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], colors: Sequence[str] = ()) -> str:
    """A table with headings, as HTML; `colors`: that of the dot before each row."""
    left, right = f"{CELL}white-space: nowrap;", f"{CELL}white-space: nowrap; text-align: right;"
    head = "".join(
        f'<th style="{left if i == 0 else right}{PALE}">{escape(text)}</th>'
        for i, text in enumerate(headings)
    )
    body = ""
    for place, row in enumerate(rows):
        dot = f'<span style="color: {colors[place]};">&#9679;</span> ' if colors else ""
        cells = "".join(
            f'<td style="{left if i == 0 else right}">{dot if i == 0 else ""}{escape(text)}</td>'
            for i, text in enumerate(row)
        )
        body += f'<tr style="background: none; border-top: {BORDER};">{cells}</tr>'
    return f'<table style="{TABLE}"><tr style="background: none;">{head}</tr>{body}</table>'


def notes(texts: Sequence[str]) -> str:
    """Lines of plain text in small letters, as HTML."""
    return "".join(
        f'<div style="{PALE} font-size: 12px; margin-top: 4px;">{escape(text)}</div>' for text in texts
    )
