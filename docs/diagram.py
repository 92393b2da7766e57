"""Draws the diagrams of the docs as SVG, because the site loads no script that could draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from footplate.contract.lifecycle import MOVES

Boxes = Mapping[str, tuple[int, int, str]]
"""The column, the row and the second line of each box."""
Arrow = tuple[str, str, str]

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 170, 48, 290, 110, 20

PROCESSES: Boxes = {
    "user": (0, 0, ""),
    "API": (1, 0, "python -m service api"),
    "SQL": (2, 0, ""),
    "Redis": (1, 1, ""),
    "control": (2, 1, "python -m service control"),
    "node": (0, 2, "python -m worker"),
    "supervisor": (1, 2, "one per attempt"),
    "warm parent": (0, 3, "has imported torch"),
    "training": (1, 3, ""),
    "artifact store": (2, 3, ""),
}
MESSAGES: list[Arrow] = [
    ("user", "API", "REST, websocket"), ("API", "SQL", "jobs"), ("API", "Redis", "wakes, served requests"),
    ("control", "SQL", "places, stores, rescues"),
    ("control", "Redis", "events, grants"), ("Redis", "control", ""),
    ("Redis", "node", "start messages"), ("node", "Redis", ""),
    ("node", "supervisor", "starts"), ("node", "warm parent", "starts"),
    ("supervisor", "Redis", "events, stops"), ("Redis", "supervisor", ""),
    ("supervisor", "warm parent", "requests a fork"), ("warm parent", "training", "forks"),
    ("training", "supervisor", "events"), ("training", "artifact store", "checkpoints"),
    ("control", "artifact store", "deletes old files"),
]  # fmt: skip
WAY: Boxes = {
    "POST /jobs": (0, 0, "service/api/jobs.py"),
    "stored": (1, 0, "service/jobs/submit.py"),
    "placed": (2, 0, "service/jobs/place.py"),
    "sent to a node": (3, 0, "service/control/dispatch.py"),
    "claimed": (3, 1, "worker/node/celery_tasks.py"),
    "granted": (2, 1, "service/jobs/inbox.py"),
    "supervised": (1, 1, "worker/attempt/supervise.py"),
    "trained": (0, 1, "footplate/trainer/loop.py"),
    "saved": (0, 2, "footplate/trainer/checkpoint.py"),
    "written to disk": (1, 2, "worker/attempt/journal.py"),
    "stored in SQL": (2, 2, "service/events/ingest.py"),
    "shown live": (3, 2, "service/api/stream.py"),
    "ended": (2, 3, "service/jobs/conclude.py"),
}
"""The way of one job, as docs/explanation/journey.md follows it."""
STEPS: list[Arrow] = [
    ("POST /jobs", "stored", "JobSpec"), ("stored", "placed", "queued"), ("placed", "sent to a node", "starting"),
    ("sent to a node", "claimed", "Celery message"), ("claimed", "granted", "claim"),
    ("granted", "supervised", "spec, checkpoint"), ("supervised", "trained", "forks"),
    ("trained", "saved", "checkpoint"), ("supervised", "written to disk", "events"),
    ("written to disk", "stored in SQL", "Redis stream"), ("stored in SQL", "shown live", "events"),
    ("stored in SQL", "ended", "end of the attempt"),
]  # fmt: skip
STATES: Boxes = {
    "succeeded": (3, 0, "final"),
    "starting": (1, 1, ""),
    "running": (2, 1, ""),
    "queued": (0, 2, "begins here"),
    "stopping": (3, 2, ""),
    "paused": (1, 3, ""),
    "failed": (2, 6, "can be resumed"),
    "cancelled": (0, 6, "can be resumed"),
}


def processes() -> str:
    return svg(PROCESSES, MESSAGES)


def way() -> str:
    return svg(WAY, STEPS)


def states() -> str:
    """Draws the table of moves."""
    moves = [(state, target) for state, targets in MOVES.items() for target in sorted(targets)]
    return svg(STATES, [(str(state), str(target), "") for state, target in moves])


def svg(boxes: Boxes, arrows: Iterable[Arrow]) -> str:
    columns, rows = (max(box[axis] for box in boxes.values()) for axis in (0, 1))
    width, height = columns * ACROSS + WIDTH + 2 * MARGIN, rows * DOWN + HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#475569"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    labels = []
    for start, end, label in arrows:
        (x1, y1), (x2, y2) = border(boxes, start, end), border(boxes, end, start)
        parts.append(
            f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" stroke="#475569" fill="none" marker-end="url(#head)"/>'
        )
        middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2 - 5
        halo = 'stroke="#fff" stroke-width="4" paint-order="stroke"'
        labels.append(f'<text x="{middle_x:.0f}" y="{middle_y:.0f}" fill="#475569" {halo}>{escape(label)}</text>')
    # Labels come after all lines, because an arrow back has the same line and would cross the label.
    parts += labels
    for name, (_, _, caption) in boxes.items():
        x, y = center(boxes, name)
        parts.append(
            f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            'fill="#eff6ff" stroke="#2563eb"/>'
        )
        parts.append(
            f'<text x="{x:.0f}" y="{y - 2 if caption else y + 4:.0f}" font-weight="bold">{escape(name)}</text>'
        )
        parts.append(f'<text x="{x:.0f}" y="{y + 15:.0f}" font-size="11">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def center(boxes: Boxes, name: str) -> tuple[float, float]:
    column, row, _ = boxes[name]
    return MARGIN + WIDTH / 2 + column * ACROSS, MARGIN + HEIGHT / 2 + row * DOWN


def border(boxes: Boxes, name: str, other_name: str) -> tuple[float, float]:
    """Returns the point at which a line from the center of a box to another one leaves the box."""
    (x, y), (other_x, other_y) = center(boxes, name), center(boxes, other_name)
    dx, dy = other_x - x, other_y - y
    scale = min(WIDTH / 2 / abs(dx) if dx else 9, HEIGHT / 2 / abs(dy) if dy else 9)
    return x + dx * scale, y + dy * scale
