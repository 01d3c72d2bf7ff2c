"""docs/findings.md explains every cause that the rules yield, and none that they do not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tlkit.collector.findings import calls, computed_again, idle_words, root_cause, run_level, straggler
from tlkit.collector.findings.blocked import _PHASES
from tlkit.collector.model.idle import BETWEEN, REASONS

TOP = Path(__file__).resolve().parents[3]
FINDINGS = sorted((TOP / "collector" / "findings").glob("*.py"))
DOCUMENT = (TOP / "docs" / "findings.md").read_text(encoding="utf-8")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: Verdicts about how a run ended: their causes are Condition.ending.
ENDINGS = {"ended-early", "hung"}


def constants(node: ast.expr) -> Iterator[str]:
    """The strings that an expression may yield: neither what it compares with nor keys of a table."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from constants(node.body)
            yield from constants(node.orelse)
        case ast.Dict():
            for value in node.values:
                yield from constants(value)
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, default]):
            yield from constants(table)
            yield from constants(default)


def causes_in(tree: ast.Module) -> Iterator[str]:
    """Of `cause=…`, `cause = …`, `class_, cause = …` and `plain(class, cause, …)`."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="cause", value=value) | ast.Assign(targets=[ast.Name(id="cause")], value=value):
                yield from constants(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for name, value in zip(names, values, strict=True):
                    if isinstance(name, ast.Name) and name.id == "cause":
                        yield from constants(value)
            case ast.Call(func=ast.Name(id="plain"), args=[_, cause, *_]):
                yield from constants(cause)


def causes_in_code() -> set[str]:
    """What stands in the rules, and in the tables that they take causes from."""
    written = {cause for path in FINDINGS for cause in causes_in(ast.parse(path.read_text(encoding="utf-8")))}
    tables = {
        *(words.cause for words in calls._WORDS.values()),
        *(cause for cause, _ in straggler._CAUSES.values()),
        *run_level._CAUSES.values(),
        *map(str, computed_again._ABOUT),
        *(f"blocked-{part}" for part in _PHASES),
        *(idle_words.cause_of(reason) for reason in REASONS if reason != BETWEEN),
    }
    return written | tables | ENDINGS


def causes_in_document() -> set[str]:
    """In bold at the beginning of a paragraph, with or without a class in front."""
    found: set[str] = set()
    for line in DOCUMENT.splitlines():
        rest = line
        while bold := re.match(r"(?:, )?\*\*(?:[a-z]+: )?([^*]+)\*\*(?: \([^)]*\))?", rest):
            found.add(bold[1])
            rest = rest[bold.end() :]
    return found


def test_every_cause_is_explained_and_nothing_else() -> None:
    """So that neither a new rule nor one that went is forgotten."""
    code, document = causes_in_code(), causes_in_document()
    assert all(SLUG.fullmatch(cause) for cause in code | document)
    assert {"slow-loader-on-some-ranks", "stragglers-in-turn", "slow-stretch", "barriers", "exposed-nccl"} <= code
    assert code - document == set(), "not explained in docs/findings.md"
    assert document - code == set(), "no rule yields it"


def test_every_root_cause_of_a_straggler_is_explained() -> None:
    """In the table beside the slow ranks."""
    code = set(re.findall(r'slug="([a-z-]+)"', Path(root_cause.__file__).read_text(encoding="utf-8")))
    document = set(re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT, re.MULTILINE))
    assert "throttled-device" in code
    assert code == document
