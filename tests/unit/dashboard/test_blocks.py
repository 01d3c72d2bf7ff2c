"""What a live page is sent: the blocks that are not as the browser has them."""

from typing import Any

from dash import html

from tlkit.dashboard.blocks import changed, contain, describe


def blocks(*words: str | None) -> list[Any]:
    return [None if each is None else html.P(each, className="card") for each in words]


def test_only_blocks_that_changed_are_sent() -> None:
    before, now = blocks("verdict", "what if", None), blocks("another verdict", "what if", "a note")
    known = describe("verdict#light", before)
    places = [container.id for container in contain("verdict#light", before)]

    news = changed(known, "verdict#light", now)

    assert news == {places[0]: now[0], places[2]: now[2]}
    assert changed(describe("verdict#light", now), "verdict#light", now) == {}


def test_another_page_or_one_of_other_blocks_is_made_anew() -> None:
    known = describe("verdict#light", blocks("a", "b"))
    assert changed(known, "verdict#dark", blocks("a", "b")) is None
    assert changed(known, "verdict#light", blocks("a")) is None
    for nonsense in (None, 3, {}, {"key": "verdict#light"}, {"key": "verdict#light", "blocks": 7}):
        assert changed(nonsense, "verdict#light", blocks("a")) is None


def test_no_page_has_the_containers_of_another() -> None:
    """An answer for the page before, which comes late, changes nothing of the page that is there."""
    one, other = ({each.id for each in contain(key, blocks("a", "b"))} for key in ("verdict#light", "steps#light"))
    assert not one & other
