"""What a source of counters is."""

from collections.abc import Callable, Iterator

Sample = tuple[str, float]
"""A counter's name and value."""

CounterSource = Callable[[float], Iterator[Sample]]
"""Given the seconds since the last sample, yields what can be read now."""
