"""Names of the spans that say where in the code the training thread was."""

from hypothesis import given
from hypothesis import strategies as st

from tlkit.timeline.model.code_spans import CodeSpan, parse_code_span

WORDS = st.text(st.characters(exclude_characters=":()", exclude_categories=["C"]), max_size=20)


@given(st.builds(CodeSpan, file=WORDS, line=st.integers(1, 99_999), function=WORDS, library=WORDS.filter(bool)))
def test_a_place_is_told_as_it_was(place: CodeSpan) -> None:
    """Whatever files and functions are called."""
    assert parse_code_span(place.name) == place


@given(st.text())
def test_any_name_is_a_place_or_none(name: str) -> None:
    """Timelines may hold anything."""
    place = parse_code_span(name)

    assert place is None or place.line >= 0


def test_names_with_marks_of_their_own() -> None:
    """A lambda has no name that a reader would take apart wrongly, and neither has a folder with a colon."""
    assert parse_code_span(CodeSpan("train.py", 3, "<lambda>", "").name) == CodeSpan("train.py", 3, "<lambda>", "")
    assert parse_code_span(CodeSpan("a:b.py", 3, "f", "").name) == CodeSpan("a_b.py", 3, "f", "")
    assert parse_code_span(CodeSpan("a.py", 3, "f", "odd (one)").name) == CodeSpan("a.py", 3, "f", "odd one")
