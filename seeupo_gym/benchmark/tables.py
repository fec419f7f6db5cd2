"""Text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Of the expert's score.
_SOLVED = 0.95


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    Lay out a table of text.

    :param header: titles of the columns; one that starts with ">" aligns its column to the right
    :param rows: the cells
    :return: lines, joined
    """
    right = [title.startswith(">") for title in header]
    table = [[title.lstrip(">") for title in header], *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)) for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def final_table(all_results: Iterable[Mapping[str, Any]]) -> str:
    """
    Summarise the last evaluations of all runs of a benchmark.

    :param all_results: contents of the ``result.json`` files
    :return: a table, one line per environment and algorithm
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in all_results:
        settings = result["settings"]
        groups.setdefault((settings["environment"], settings["algorithm"]), []).append(result)
    rows, unit = [], "score: 0 is random play, 1 is the expert"
    for (environment, algorithm), results in groups.items():
        last = [result["evaluations"][-1] for result in results]
        column = "score" if any(row["normalized_score"] is None for row in last) else "normalized_score"
        scores = [row[column] for row in last]
        successes = [row["success_rate"] for row in last if row["success_rate"] is not None]
        mark = "*" if column == "score" else ""
        rows.append(
            [
                environment,
                algorithm,
                f"{sum(scores) / len(scores):.3f}{mark}",
                " ".join(f"{score:.3f}" for score in scores),
                f"{sum(successes) / len(successes):.0%}" if successes else "",
                f"{sum(result['timesteps'] for result in results) / len(results):,.0f}",
                f"{sum(result['steps_per_second'] for result in results) / len(results):,.0f}",
            ]
        )
    if any("*" in row[2] for row in rows):
        unit += "; * mean return, as the environment has no expert"
    header = ["environment", "algorithm", ">score", "of each seed", ">success", ">steps", ">steps/s"]
    return f"{format_table(header, rows)}\n({unit}; held-out episodes, deterministic policy)"


def solved_line(all_results: Iterable[Mapping[str, Any]]) -> str:
    """
    Say in one line which algorithms solved which environment on every seed.

    Solved is a normalised score of at least 0.95 at the end, where the expert's is 1.

    :param all_results: contents of the ``result.json`` files
    :return: the line; empty if no environment has an expert
    """
    by_env: dict[str, dict[str, list[float]]] = {}
    for result in all_results:
        score, settings = result["evaluations"][-1]["normalized_score"], result["settings"]
        if score is not None:
            by_env.setdefault(settings["environment"], {}).setdefault(settings["algorithm"], []).append(score)
    parts = []
    for environment, scores in by_env.items():
        solvers = [algorithm for algorithm, of_seeds in scores.items() if min(of_seeds) >= _SOLVED]
        parts.append(f"{environment} by {', '.join(solvers) or 'none'}")
    return f"Solved on every seed (a score of at least {_SOLVED}): {'; '.join(parts)}." if parts else ""
