"""One HTML file that needs nothing else: its frame, tables, pictures inside it, and text that is safe to show."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from hoplite_ucx.bench.harness.plots import load_pyplot

__all__ = ["as_data", "escape", "page_of", "table"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
img { max-width: 100%; background: white; } table { border-collapse: collapse; font-size: 0.85rem; }
td, th { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #e4e4e4; }
td:first-child, th:first-child { text-align: left; } pre { overflow-x: auto; font-size: 0.75rem; background: #f6f6f6; }
.missing { color: #8a1c1c; } dt { font-weight: 600; } dd { margin: 0 0 0.6rem 1.2rem; }
"""


def page_of(title: str, body: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def escape(text: object) -> str:
    return html.escape(text if isinstance(text, str) else json.dumps(text))


def as_data(picture: Any) -> str:
    """A matplotlib figure that can stand in a page; it is closed then."""
    pyplot = load_pyplot()
    written = io.BytesIO()
    try:
        picture.savefig(written, format="svg", metadata={"Date": None})
    finally:
        pyplot.close(picture)
    return f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"
