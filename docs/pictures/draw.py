"""Draws the pictures of the manual as SVG, from what the simulator computes and from the messages of the protocol.

python docs/pictures/draw.py    # writes the files beside this one; a test compares them
"""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.protocol import messages
from hoplite_ucx.protocol.directory.states import RECEIVER_MOVES, REDUCTION_MOVES, SLOT_MOVES, Moves

HERE = Path(__file__).parent
INK, PALE, GOOD, BAD = "#24292f", "#8c959f", "#0969da", "#cf222e"

BROADCAST = (
    ("node A (puts)", "directory", "node B", "node C"),
    [
        (0, 1, "Put"),
        (1, 0, "PutAccepted: the version"),
        (0, None, "A's user fills the segment, the watermark rises"),
        (2, 1, "Want"),
        (1, 2, "Place 1: from A"),
        (2, 0, "StreamRequest: from offset 0"),
        (0, 2, "≈ bytes, up to A's watermark"),
        (3, 1, "Want"),
        (1, 3, "Place 2: from B"),
        (3, 2, "StreamRequest: from offset 0"),
        (2, 3, "≈ bytes, up to B's watermark"),
        (0, 1, "Completed"),
        (2, 1, "Completed"),
        (3, 1, "Completed"),
    ],
)
REDUCE = (
    ("node B (source 1)", "directory", "node C (source 2)", "node G (gets)"),
    [
        (3, 1, "Reduce, Want"),
        (1, 2, "Bind v: parts 1, 2"),
        (2, None, "memory is taken, part 2 is here"),
        (2, 1, "Bound: part 1 is missing"),
        (1, 2, "Place 7: part 1 from B, into v"),
        (1, 3, "Place 8: v from C, not sealed"),
        (2, 0, "StreamRequest"),
        (3, 2, "StreamRequest"),
        (0, 2, "≈ bytes of part 1"),
        (2, 3, "≈ combined, up to C's watermark"),
        (2, 1, "Consumed: part 1"),
        (2, 1, "Completed: v"),
        (1, 2, "Sealed: v"),
        (1, 3, "Sealed: v"),
        (3, 1, "Completed: v"),
        (3, None, "the gets are answered"),
    ],
)
Step = tuple[int, int | None, str]


def pictures() -> Iterator[tuple[str, str]]:
    """The names of all pictures, and what is in them."""
    yield "broadcast.svg", sequence(*BROADCAST)
    yield "reduce.svg", sequence(*REDUCE)
    yield "receiver.svg", states(RECEIVER_MOVES)
    yield "slot.svg", states(SLOT_MOVES)
    yield "reduction.svg", states(REDUCTION_MOVES)
    yield "programs.svg", programs()
    yield "relay-killed.svg", chain("broadcast --nodes 8 --size 64MiB --kill 4@40%")


def programs() -> str:
    """The processes of a cluster of three hosts, and what connects them."""
    parts = [box(20, 20, 700, 70), text(40, 44, "head", "italic", left=True), box(290, 34, 160, 40)]
    parts.append(text(370, 59, "directory", "bold"))
    for host in range(3):
        x = 20 + 240 * host
        parts += [box(x, 150, 220, 190), text(x + 14, 330, f"host {host + 1}", "italic", left=True)]
        parts.append(text(x + 206, 330, "shared memory", "", right=True))
        parts += [box(x + 50, 170, 120, 40), text(x + 110, 195, "agent", "bold")]
        parts.append(line(x + 110, 168, 330 + 40 * host, 78, PALE, 1, arrow=True))
        for worker in range(2):
            left = x + 14 + 102 * worker
            parts += [box(left, 266, 90, 36), text(left + 45, 289, "worker", "")]
            parts.append(line(left + 45, 264, x + 90 + 40 * worker, 214, INK, 1, arrow=True))
        if host:
            parts.append(line(x - 68, 190, x + 46, 190, GOOD, 3, arrow=True))
            parts.append(text(x - 10, 182, "bytes", "carried"))
    parts.append(text(560, 122, "messages: who wants what, who pulls from whom", ""))
    return svg(740, 360, parts)


def states(moves: Moves[Any]) -> str:
    """States from left to right. Moves to the right go above them, moves back below; each has the number of its row in
    the table."""
    order = list(dict.fromkeys(state for move in moves for state in move))
    wide, middle = 170, 34 * len(order) + 40
    parts = []
    for number, move in enumerate(moves, 1):
        here, there = (order.index(state) for state in move)
        steps = there - here
        side = -1 if steps > 0 else 1
        # Short moves leave and arrive at the near edges of the boxes, so that longer ones lie around them.
        inward = -side * 12 * (len(order) - abs(steps))
        start, end = wide * (here + 0.5) + inward, wide * (there + 0.5) - inward
        edge, peak = middle + 18 * side, middle + (18 + 56 * abs(steps)) * side
        path = f"M {start:g} {edge:g} C {start:g} {peak:g} {end:g} {peak:g} {end:g} {edge + 2 * side:g}"
        parts.append(f'<path d="{path}" fill="none" stroke="{INK}" marker-end="url(#say)"/>')
        parts.append(
            text((start + end) / 2, middle + (24 + 42 * abs(steps)) * side + (-3 if side < 0 else 8), str(number), "")
        )
    for place, state in enumerate(order):
        x = wide * place + wide / 2
        parts += [box(x - 60, middle - 16, 120, 32), text(x, middle + 5, state.value, "bold")]
    return svg(wide * len(order), 2 * middle, parts)


def sequence(people: Sequence[str], steps: Sequence[Step]) -> str:
    """Messages in their order, between programs. A step with ≈ is bytes on a link, one without a receiver is a note."""
    wide, row = 210, 30
    width, height = wide * len(people), row * (len(steps) + 2)
    parts = []
    for number, person in enumerate(people):
        x = wide * number + wide / 2
        parts += [line(x, 40, x, height - 10, PALE, 1), box(x - 80, 8, 160, 28), text(x, 27, person, "bold")]
    for number, (sender, receiver, what) in enumerate(steps):
        y, x = row * (number + 2) + 6, wide * sender + wide / 2
        if receiver is None:
            parts.append(text(x, y - 5, what, "italic", left=sender == 0, right=sender == len(people) - 1))
            continue
        carried = what.startswith("≈")
        if not carried:
            _check_messages(what)
        end = wide * receiver + wide / 2
        parts.append(line(x, y, end, y, GOOD if carried else INK, 3 if carried else 1, arrow=True))
        # Beside the nearer of two columns if the arrow passes a third one, else in its middle.
        middle = (x + end) / 2 if abs(receiver - sender) == 1 else x + (wide / 2 if end > x else -wide / 2)
        parts.append(text(middle, y - 5, what.removeprefix("≈ "), "carried" if carried else ""))
    return svg(width, height, parts)


def _check_messages(what: str) -> None:
    for name in what.split(":")[0].split(", "):
        assert hasattr(messages, name.split()[0]), f"the protocol has no message {name}"


def chain(command: str) -> str:
    """A simulated broadcast along a chain, before and after a relay is killed."""
    done = CliRunner().invoke(app, ["simulate", *command.split(), "--json"])
    result = json.loads(done.stdout)
    after: list[list[int]] = result["tree"]
    [killed], [move] = result["killed"], result["moves"]
    dead, host = killed["host"], move["host"]
    before = [edge for edge in after if edge[1] != host] + [[move["old"], host], [move["new"], dead]]
    milliseconds = round(1000 * killed["at"])
    parts = [text(20, 26, "every host forwards what it has so far", "", left=True)]
    parts += _row(70, result["nodes"], before, dead=None, new=None)
    note = f"after {milliseconds} ms host {dead} is killed: host {host} continues from host {move['new']}, at its byte"
    parts.append(text(20, 126, note, "", left=True))
    parts += _row(180, result["nodes"], after, dead=dead, new=host)
    took, limit = round(1000 * result["seconds"]), round(1000 * result["limit_seconds"])
    parts.append(text(20, 232, f"all have it after {took} ms; one transfer takes {limit} ms", "", left=True))
    return svg(100 * result["nodes"], 250, parts)


def _row(y: float, hosts: int, edges: Sequence[Sequence[int]], dead: int | None, new: int | None) -> list[str]:
    parts = []
    for sender, receiver in edges:
        start, end = 100 * sender + 72, 100 * receiver + 28
        if receiver - sender == 1:
            parts.append(line(start, y, end, y, INK, 1, arrow=True))
        else:  # over those between
            lift = y - 48
            path = f"M {start - 8} {y - 16} Q {(start + end) / 2} {lift} {end + 6} {y - 18}"
            parts.append(f'<path d="{path}" fill="none" stroke="{GOOD}" stroke-width="3" marker-end="url(#carry)"/>')
    for host in range(hosts):
        colour = BAD if host == dead else GOOD if host == new else INK
        parts.append(
            f'<circle cx="{100 * host + 50}" cy="{y}" r="20" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(text(100 * host + 50, y + 5, "✗" if host == dead else str(host), "bold"))
    return parts


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """On a white ground, so that it can be read on light and dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    style = (
        "<style>text{font:13px sans-serif;fill:" + INK + "}.bold{font-weight:bold}.italic{font-style:italic}"
        ".carried{fill:" + GOOD + "}</style>"
    )
    arrows = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{size}" markerHeight="{size}" '
        f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
        for name, colour, size in (("say", INK, 8), ("carry", GOOD, 4))
    )
    ground = f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, style, f"<defs>{arrows}</defs>", ground, *parts, "</svg>", ""])


def line(x: float, y: float, end_x: float, end_y: float, colour: str, thick: int, arrow: bool = False) -> str:
    mark = f' marker-end="url(#{"carry" if colour == GOOD else "say"})"' if arrow else ""
    return f'<line x1="{x:g}" y1="{y:g}" x2="{end_x:g}" y2="{end_y:g}" stroke="{colour}" stroke-width="{thick}"{mark}/>'


def box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="4" fill="#f6f8fa" stroke="{PALE}"/>'


def text(x: float, y: float, words: str, look: str, left: bool = False, right: bool = False) -> str:
    anchor = "start" if left else "end" if right else "middle"
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{look}">{escape(words)}</text>'


if __name__ == "__main__":
    for name, content in pictures():
        (HERE / name).write_text(content)
