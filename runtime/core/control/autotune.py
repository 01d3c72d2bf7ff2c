"""Finds the fusion threshold and the cycle time that move most bytes a second, while the training runs.

Bayesian optimisation, as Horovod's: a Gaussian process over the two knobs, the next try where the expected improvement is
largest.  A knob that the user has set is left alone.  Only rank 0 tunes; the threshold is its own business, the cycle time it
tells the others.
"""

import csv
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from ..config import Config
from .coordinator import Orders

_log = logging.getLogger("tlkit.runtime")

_MIB: Final = 1024 * 1024

#: Ranges of the knobs: MiB, up to Horovod's default, and ms.
_THRESHOLD_MIB: Final = (0.0, 128.0)
_CYCLE_MS: Final = (0.1, 25.0)

#: First tries, in these units, before there is anything to learn from.
_FIRST_TRIES: Final = ((128.0, 1.0), (4.0, 5.0), (32.0, 10.0), (64.0, 0.5))

#: Columns of the log, as Horovod writes them.
_COLUMNS: Final = (
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "cache_enabled",
    "cycle_time_ms",
    "tensor_fusion_threshold",
    "score",
)

_SCORES_A_SAMPLE: Final = 5
_CANDIDATES: Final = 512
_LENGTH_SCALE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Settings:
    """Values for the knobs."""

    fusion_threshold_nbytes: int
    cycle_time_s: float


class Autotuner:
    """Watches what is sent out, and says when to change a knob."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        """Begin with the settings of `config`."""
        self._config = config
        self._random = np.random.default_rng(seed)
        self._fixed = (
            config.fusion_threshold_nbytes / _MIB if config.fusion_threshold_is_set else None,
            config.cycle_time_s * 1e3 if config.cycle_time_is_set else None,
        )
        self._now = self._clamped((config.fusion_threshold_nbytes / _MIB, config.cycle_time_s * 1e3))
        self._tried: list[tuple[float, float]] = []
        self._scores: list[float] = []
        self._warmup = config.autotune_warmup_samples
        self._of_sample: list[float] = []
        self._begun_ns = 0
        self._nbytes = 0
        self._steps = 0
        self._seen: set[object] = set()
        self.finished = None not in self._fixed
        self._rows: list[tuple[float, float, float]] = []

    def _clamped(self, point: tuple[float, float]) -> tuple[float, float]:
        threshold, cycle = self._fixed
        return (point[0] if threshold is None else threshold, point[1] if cycle is None else cycle)

    def observe(self, orders: Orders, nbytes: int, now_ns: int) -> Settings | None:
        """Take note of work that is sent out; returns new settings when it is time to change them.

        Args:
            nbytes: bytes of the tensors in `orders`.
        """
        if self.finished:
            return None
        for _, response in orders.responses:
            key = response.names[0] if response.names else tuple(response.ids)
            if key in self._seen:
                self._seen.clear()
                self._steps += 1
            self._seen.add(key)
        if not self._begun_ns:
            self._begun_ns = now_ns
        self._nbytes += nbytes
        if self._steps < self._config.autotune_steps_per_sample:
            return None
        score = self._nbytes / max((now_ns - self._begun_ns) / 1e3, 1.0)
        self._steps, self._nbytes, self._begun_ns = 0, 0, now_ns
        self._of_sample.append(score)
        if len(self._of_sample) < _SCORES_A_SAMPLE:
            return None
        sample = median(self._of_sample)
        self._of_sample = []
        if self._warmup > 0:
            self._warmup -= 1
            return None
        return self._learn(sample)

    def _learn(self, score: float) -> Settings:
        self._tried.append(self._now)
        self._scores.append(score)
        self._note(*self._now, score)
        if len(self._tried) >= self._config.autotune_max_samples:
            best = int(np.argmax(self._scores))
            self._now = self._tried[best]
            self.finished = True
            self._note(*self._now, self._scores[best])
            _log.info("Autotuner: best is %.1f MiB and %.2f ms, %.1f bytes/us", *self._now, self._scores[best])
        elif len(self._tried) < len(_FIRST_TRIES):
            self._now = self._clamped(_FIRST_TRIES[len(self._tried)])
        else:
            self._now = self._propose()
        threshold_mib, cycle_ms = self._now
        _log.info("Autotuner: trying %.1f MiB and %.2f ms", threshold_mib, cycle_ms)
        return Settings(round(threshold_mib * _MIB), cycle_ms / 1e3)

    def _note(self, threshold_mib: float, cycle_ms: float, score: float) -> None:
        """Add a row to the log that HOROVOD_AUTOTUNE_LOG names, in Horovod's columns."""
        path = self._config.autotune_log
        if not path:
            return
        self._rows.append((cycle_ms, threshold_mib, score))
        try:
            with Path(path).open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(_COLUMNS)
                hierarchical = int(self._config.hierarchical_allreduce)
                for cycle, threshold, value in self._rows:
                    cached = int(self._config.cache_capacity > 0)
                    row = (hierarchical, 0, 0, cached, f"{cycle:.3f}", round(threshold * _MIB), f"{value:.4f}")
                    writer.writerow(row)
        except OSError as error:
            _log.warning("cannot write the autotune log %s: %s", path, error.strerror)

    def _propose(self) -> tuple[float, float]:
        """Where the expected improvement is largest, among random candidates."""
        candidates = np.column_stack(
            [self._random.uniform(*_THRESHOLD_MIB, _CANDIDATES), self._random.uniform(size=_CANDIDATES)]
        )
        low, high = np.log(_CYCLE_MS[0]), np.log(_CYCLE_MS[1])
        candidates[:, 1] = np.exp(low + candidates[:, 1] * (high - low))
        points = np.array([self._clamped((float(a), float(b))) for a, b in candidates])
        gains = expected_improvement(
            _unit(np.array(self._tried)), np.array(self._scores), _unit(points), self._config.autotune_noise
        )
        best = points[int(np.argmax(gains))]
        return float(best[0]), float(best[1])


def _unit(points: np.ndarray) -> np.ndarray:
    """Knobs as numbers from 0 to 1, the cycle time by its logarithm."""
    low, high = np.log(_CYCLE_MS[0]), np.log(_CYCLE_MS[1])
    return np.column_stack(
        [
            (points[:, 0] - _THRESHOLD_MIB[0]) / (_THRESHOLD_MIB[1] - _THRESHOLD_MIB[0]),
            (np.log(np.maximum(points[:, 1], 1e-3)) - low) / (high - low),
        ]
    )


def expected_improvement(tried: np.ndarray, scores: np.ndarray, candidates: np.ndarray, noise: float) -> np.ndarray:
    """How much better than the best of `scores` each candidate is expected to be.

    A Gaussian process with a squared-exponential kernel (Rasmussen and Williams, "Gaussian Processes for Machine Learning", eq.
    2.25 and 2.26), on scores scaled to mean 0 and deviation 1.

    Args:
        tried: points, from 0 to 1, shape (n, d).
        scores: their scores, shape (n,).
        candidates: points, shape (m, d).
        noise: standard deviation of a score, as a share of the scores' own.

    Returns:
        Expected improvement in scaled scores, shape (m,).
    """
    deviation = float(scores.std()) or 1.0
    scaled = (scores - scores.mean()) / deviation

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        distances = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(np.exp(-distances / (2 * _LENGTH_SCALE**2)))

    covariance = kernel(tried, tried) + (noise**2 + 1e-9) * np.eye(len(tried))
    across = kernel(tried, candidates)
    solved = np.linalg.solve(covariance, across)
    mean = solved.T @ scaled
    spread = np.sqrt(np.maximum(1.0 - (across * solved).sum(axis=0), 1e-12))
    z = (mean - scaled.max()) / spread
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return np.asarray((mean - scaled.max()) * below + spread * density)
