"""Makes docs/explanation/performance.md and its plot from bench/results.md."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "bench" / "results.md"
FIGURES = {
    "warm POST → first step, p50 of 60": "From `POST /jobs` to the first training step, on a warm node",
    "event → 1 reader, 2,000 messages/s in all: p50": "From an event in training to one reader",
    "event → 200 readers, 2,000 messages/s in all: p50": "From an event in training to 200 readers",
    "POST /jobs, sqlite, raw client: p99": "`POST /jobs`, the slowest of 100, SQLite",
    "POST /jobs, postgres, raw client: p99": "`POST /jobs`, the slowest of 100, PostgreSQL",
    "of 1,000,000 jobs, sqlite: failed ones, in the middle": "A page of failed jobs, of a million jobs, SQLite",
    "of 1,000,000 jobs, postgres: failed ones, in the middle": "A page of failed jobs, of a million jobs, PostgreSQL",
    "a curve of 10,000,000 points, sqlite: 1,000 points of it": "A curve of ten million points, SQLite",
    "a curve of 10,000,000 points, postgres: 1,000 points of it": "A curve of ten million points, PostgreSQL",
    "event → 200 readers, 2,000 messages/s in all: p99": "From an event to 200 readers, the slowest of 100",
}
"""The figures of the page in milliseconds, and what they mean. The names are those of bench/results.md."""
GPT_2 = "GPT-2 small, bf16, compiled, NVIDIA H100 80GB HBM3: ours, relative to %s"
TRAINING = {
    GPT_2 % "the loop by hand": "Our Trainer, relative to a tuned loop by hand: GPT-2 small in bf16 on one H100",
    GPT_2 % "transformers'": "Our Trainer, relative to Hugging Face's: GPT-2 small in bf16 on one H100",
    "tiny MLP, batch 32: speed of ours, by CPU time": "Our Trainer, relative to a loop by hand: a tiny MLP on a CPU",
    "tiny MLP, batch 32: speed of transformers, by CPU time": "Hugging Face's Trainer, relative to the same loop",
}
"""Speeds of training, each of them the quotient of two that were measured in turns."""
STORED = "journal → Redis → %s, acknowledged, exactly once: 4 attempts × 40,000 events"
RATES = {
    "POST /jobs, sqlite, raw client": "Jobs accepted in a second, SQLite",
    "POST /jobs, postgres, raw client": "Jobs accepted in a second, PostgreSQL",
    "300 queued jobs drained by one node of two slots": "Short jobs finished in a second, on two slots",
    f"{STORED % 'sqlite'}": "Events stored in a second, SQLite",
    f"{STORED % 'postgres'}": "Events stored in a second, PostgreSQL",
    "POST /jobs, sqlite, raw client: ratio to no-op": "Jobs accepted, relative to an empty endpoint, SQLite",
    "POST /jobs, postgres, raw client: ratio to no-op": "Jobs accepted, relative to an empty endpoint, PostgreSQL",
}  # fmt: skip


def performance_page(notice: str) -> str:
    return "\n".join(
        [
            "# How fast it is",
            notice,
            "All figures are from [bench/results.md](../../bench/results.md), with machine and date.",
            "Most come from two shared cores without a GPU. `make bench` measures your machine.",
            "\nA *goal* was set before the measurement. Goals that were missed are shown, too.",
            "\n## Waiting times\n",
            "![Waiting times beside their goals](performance.svg)\n",
            "| what | median | goal | met |",
            "|---|---|---|---|",
            *(row(name, meaning) for name, meaning in FIGURES.items()),
            "\n## Training\n",
            "A loop by hand has no checkpoints, evaluations, callbacks or logs beyond its loss.\n",
            "| speed | median | goal | met |",
            "|---|---|---|---|",
            *(row(name, meaning) for name, meaning in TRAINING.items()),
            "\n## Rates\n",
            "| what | median | goal | met |",
            "|---|---|---|---|",
            *(row(name, meaning) for name, meaning in RATES.items()),
            "\n## Long queues\n",
            "![Milliseconds for POST, GET /jobs, GET /queue and one placement, by waiting jobs](../growth.svg)\n",
            "This plot was measured while other work held both cores, so its times are too long.",
            "",
        ]
    )


def measured(name: str) -> tuple[str, str]:
    """Returns the median and the goal of a figure in bench/results.md. Raises KeyError if it has no such figure."""
    for line in RESULTS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name and len(cells) == 4:
            return cells[1], cells[3]
    raise KeyError(f"bench/results.md has no figure named {name!r}")


def number(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text.split()[0 if text[0].isdigit() else 1]))


def is_met(median: str, goal: str) -> bool | None:
    """Returns True if the goal is met, and None if there is no goal."""
    if not goal:
        return None
    return number(median) <= number(goal) if goal.startswith("≤") else number(median) >= number(goal)


def row(name: str, meaning: str) -> str:
    median, goal = measured(name)
    met = {True: "yes", False: "**no**", None: ""}[is_met(median, goal)]
    return f"| {meaning} | {median} | {goal} | {met} |"


def plot() -> str:
    """Returns a bar for each waiting time as SVG. A line marks the goal."""
    rows = [(meaning.replace("`", ""), *measured(name)) for name, meaning in FIGURES.items()]
    longest = max(max(number(median), number(goal)) for _, median, goal in rows)
    left_edge, width, height = 360, 420, 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left_edge + width + 90}" height="{height * len(rows) + 30}"',
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{left_edge}" y="16" fill="#666">milliseconds; the line is the goal</text>',
    ]
    for index, (meaning, median, goal) in enumerate(rows):
        y, length, goal_x = 26 + index * height, number(median) / longest * width, number(goal) / longest * width
        colour = "#059669" if is_met(median, goal) else "#dc2626"
        parts.append(f'<text x="{left_edge - 8}" y="{y + 14}" text-anchor="end">{escape(meaning)}</text>')
        parts.append(f'<rect x="{left_edge}" y="{y + 3}" width="{length:.1f}" height="14" fill="{colour}"/>')
        parts.append(f'<path d="M{left_edge + goal_x:.1f} {y}v20" stroke="#111" stroke-width="2"/>')
        parts.append(f'<text x="{left_edge + max(length, goal_x) + 6:.1f}" y="{y + 14}">{escape(median)}</text>')
    return "\n".join([*parts, "</svg>\n"])
