"""How sure one can be of a gain."""

import numpy as np


def gain_of(
    saved_ns: np.ndarray[tuple[int], np.dtype[np.float64]], step_ns: float
) -> tuple[float, tuple[float, float]]:
    """Mean gain and its 95 % interval, from the time saved in each step.

    The interval is the mean's (1.96 standard errors), which says how sure the mean is, not how steps vary.
    """
    if not len(saved_ns) or step_ns <= 0:
        return 0.0, (0.0, 0.0)
    mean = float(saved_ns.mean())
    error = 1.96 * float(saved_ns.std(ddof=1)) / len(saved_ns) ** 0.5 if len(saved_ns) > 1 else mean

    def ratio(value_ns: float) -> float:
        return min(max(value_ns / step_ns, 0.0), 1.0)

    return ratio(mean), (ratio(mean - error), ratio(mean + error))
