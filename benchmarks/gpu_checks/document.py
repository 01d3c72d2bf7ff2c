"""The tables of docs/gpu.md: what stands between two marks is what the last run of `make gpu` found."""

import re
from collections.abc import Mapping, Sequence

Row = Mapping[str, object]

#: What stands where nothing was ever measured.
NEVER = "Never run on hardware."


def replaced(text: str, name: str, content: str) -> str:
    """The document with something else between the marks of a part.

    Raises:
        ValueError: it has no such part.

    >>> replaced("<!-- a -->old<!-- end a -->", "a", "new").split()
    ['<!--', 'a', '-->', 'new', '<!--', 'end', 'a', '-->']
    """
    marks = re.compile(rf"(<!-- {re.escape(name)} -->).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"docs/gpu.md has no part {name}")
    return marks.sub(lambda found: f"{found[1]}\n{content}\n{found[2]}", text)


def table(rows: Sequence[Row]) -> str:
    """Rows with the same keys as a table; says so if there are none.

    >>> print(table([{"kind": "idle", "off": 2.5}]))
    | kind | off |
    | --- | --- |
    | idle | 2.5 |
    """
    if not rows:
        return NEVER
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [heads, ["---"] * len(heads), *([_cell(row.get(head, "")) for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")


def state(machine: str, outcomes: Mapping[str, str]) -> str:
    """What was run, where, and how it ended.

    Args:
        outcomes: of each piece "passed", or what it ended with.
    """
    bad = [f"{piece}: {outcome}" for piece, outcome in outcomes.items() if outcome != "passed"]
    good = [piece for piece, outcome in outcomes.items() if outcome == "passed"]
    ended = f"Passed: {', '.join(good) or 'nothing'}." + (f" Not passed: {'; '.join(bad)}." if bad else "")
    return f"Run on {machine}. {ended}"
