"""Numbers looked up in tables: compiled or not, the same."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.timeline.scanning import first_rows, gather, has_compiled_scanner, select

SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32)
TABLES = (bool, np.int8, np.uint16, np.int32, np.uint32, np.int64, np.float64)

ways = ["", "1"] if has_compiled_scanner() else ["1"]


@pytest.fixture(params=ways)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment in which all is compiled, and that in which nothing is."""
    monkeypatch.setenv("TLKIT_PORTABLE_SCANNER", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("table_type", TABLES)
@pytest.mark.parametrize("number_type", [*SIGNED, *UNSIGNED, np.uint64])
def test_numbers_of_any_type_are_looked_up_in_tables_of_any_type(number_type: type, table_type: type) -> None:
    """As NumPy's `take` does, from the end as well; into a column that is there, or apart."""
    table: np.ndarray = np.arange(-3, 17).astype(table_type)
    first = -20 if number_type in SIGNED else 0
    numbers: np.ndarray = np.arange(first, 20).astype(number_type)
    place: np.ndarray = np.zeros(100, table_type)[10 : 10 + len(numbers)]

    assert gather(table, numbers).tolist() == table.take(numbers.astype(np.int64)).tolist()
    assert gather(table, numbers, place) is place
    assert place.tolist() == table.take(numbers.astype(np.int64)).tolist()
    assert gather(table[::2], numbers[20:25:2]).dtype == table_type


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("table", "number"), [([1, 2], 2), ([1, 2], -3), ([], 0), ([], -1)])
def test_a_number_beyond_the_table_is_an_error(table: list[int], number: int) -> None:
    """Whatever lies behind the table is never read."""
    with pytest.raises(IndexError):
        gather(np.array(table, np.int32), np.array([number]))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("number_type", [*SIGNED, *UNSIGNED])
@given(numbers=st.lists(st.integers(3, 60)))
def test_the_first_row_of_each_number_is_found(number_type: type, numbers: list[int]) -> None:
    """And -1 for those that are not there."""
    found = first_rows(np.array(numbers, number_type), 3, 58)

    assert found.tolist() == [numbers.index(number) if number in numbers else -1 for number in range(3, 61)]


@pytest.mark.usefixtures("way")
def test_a_number_without_a_place_is_an_error() -> None:
    """In front or behind."""
    with pytest.raises(IndexError):
        first_rows(np.array([7]), 3, 4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("number_type", [np.int32, np.int64])
@pytest.mark.parametrize("kind_type", UNSIGNED)
@given(events=st.lists(st.integers(0, 3)), data=st.data())
def test_rows_of_chosen_kinds_are_selected(
    kind_type: type, number_type: type, events: list[int], data: st.DataObject
) -> None:
    """With the number beside each, in their order."""
    rows = sorted(data.draw(st.sets(st.integers(0, len(events) - 1)))) if events else []
    numbers = [7 * row - 5 for row in rows]
    chosen = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))

    of_rows, of_numbers = select(
        np.array(events, kind_type), np.array(chosen), np.array(rows, np.uint32), np.array(numbers, number_type)
    )

    assert of_rows.tolist() == [row for row in rows if chosen[events[row]]]
    assert of_numbers.tolist() == [7 * row - 5 for row in rows if chosen[events[row]]]
    assert [of_rows.dtype, of_numbers.dtype] == [np.dtype(np.uint32), np.dtype(number_type)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("row", "chosen"), [(2, [True, True]), (1, [True])])
def test_a_row_beyond_the_events_is_an_error(row: int, chosen: list[bool]) -> None:
    """And so is a kind of which nothing is known."""
    with pytest.raises(IndexError):
        select(np.array([0, 1], np.uint8), np.array(chosen), np.array([row], np.uint32), np.array([5], np.int32))
