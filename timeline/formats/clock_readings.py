"""A rank's clock as the runtime has measured it now and then, some readings much better than others."""

from collections.abc import Sequence

import numpy as np

#: How fast two clocks may drift apart at first, in seconds a second, and by how much that changes within a second.
_DRIFT = 1e-4
_WANDER = 1e-8

_MAX_NS = 2.0**61

#: No reading is better than this.
_MIN_NS = 500.0


def smooth(first: tuple[int, int], readings: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The most likely offset at each reading, given all of them: a clock drifts evenly, a reading of a busy rank is uncertain.

    A Kalman filter over offset and drift, and back (Rauch, Tung and Striebel).

    Args:
        first: offset at time 0 and its uncertainty, in ns.
        readings: time, offset and uncertainty of each, in ns.

    Returns:
        Time and offset of each, in the order of time.
    """
    ordered = sorted(reading for reading in readings if reading[0] >= 0)
    state = np.array([float(first[0]), 0.0])
    spread = np.diag([max(first[1] / 2, _MIN_NS) ** 2, _DRIFT**2])
    before_ns = 0
    kept = []
    for at_ns, offset_ns, uncertainty_ns in ordered:
        passed_ns = float(at_ns - before_ns)
        before_ns = at_ns
        move = np.array([[1.0, passed_ns], [0.0, 1.0]])
        expected = move @ state
        expected_spread = move @ spread @ move.T
        expected_spread[1, 1] += _WANDER**2 * passed_ns / 1e9
        gain = expected_spread[:, 0] / (expected_spread[0, 0] + max(uncertainty_ns / 2, _MIN_NS) ** 2)
        state = expected + gain * (offset_ns - expected[0])
        spread = expected_spread - np.outer(gain, expected_spread[0])
        kept.append((move, expected, expected_spread, state, spread))
    offsets = []
    following = state
    for number in range(len(kept) - 1, -1, -1):
        _, _, _, state, spread = kept[number]
        if number + 1 < len(kept):
            move, expected, expected_spread, _, _ = kept[number + 1]
            state = state + spread @ move.T @ np.linalg.pinv(expected_spread) @ (following - expected)
        following = state
        # A damaged file may say anything.
        offsets.append(round(float(np.clip(np.nan_to_num(state[0]), -_MAX_NS, _MAX_NS))))
    return [(at_ns, offset_ns) for (at_ns, _, _), offset_ns in zip(ordered, reversed(offsets), strict=True)]
