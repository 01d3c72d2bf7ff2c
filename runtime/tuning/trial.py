"""A rank of a trial: it notes when its steps end and what the loss is, changes settings between blocks of steps, and stops.

A trial records no timeline, so what it measures is the training alone: one hook that runs after an optimizer's step, and one
around `backward`.
"""

import atexit
import contextlib
import functools
import logging
import os
import random
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...timeline.trials import FUSED, LIVE_CYCLE, LIVE_FUSION, THREADS, RankTrial, TrialPlan, decode_plan, trial_path
from ..core import engine
from ..core.topology import read_launched
from .observing import Observer
from .overrides import Arguments, set_fused, set_num_threads, update_form

_log = logging.getLogger("tlkit.runtime")

#: Steps of other optimizers after which the one that counted steps is taken for gone (as in instrument/steps.py).
_PATIENCE: Final = 3

_trials: Final[list["Trial"]] = []


def start(text: str) -> None:
    """Make this process a rank of the trial that `text` describes.

    Raises:
        UsageError: it describes none.
    """
    plan = decode_plan(text)
    if plan.seed is not None:
        random.seed(plan.seed)
        np.random.seed(plan.seed)  # noqa: NPY002  scripts draw from the global one
        torch.manual_seed(plan.seed)
    trial = Trial(plan)
    trial.install()
    _trials.append(trial)


class Trial:
    """The plan of this rank, and what it has measured."""

    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan
        self._observer = Observer()
        self._begun_ns = time.monotonic_ns()
        self._ends_ns: list[int] = []
        self._losses: list[list[torch.Tensor]] = []
        self._since: list[torch.Tensor] = []
        self._marker = 0
        self._silent = 0
        self._ended = False
        self._starts = block_starts(plan)
        self._at_start: dict[str, str] = {}
        self._fuses = any(FUSED in block.settings for block in plan.blocks)
        self._form_at_start: list[Arguments] = []
        self._process = os.getpid()

    def install(self) -> None:
        """Watch the training of this process from now on."""
        self._observer.install()
        register_optimizer_step_post_hook(self._stepped)
        original = torch.autograd.backward

        @functools.wraps(original)
        def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self._since.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = noted
        atexit.register(self._end, ended_itself=True)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After an optimizer's step.  Of several the one that stepped first counts, until it has been silent for a while."""
        if not self._marker or self._silent >= _PATIENCE:
            self._marker = id(optimizer)
        if id(optimizer) != self._marker:
            self._silent += 1
            return
        self._silent = 0
        self._ends_ns.append(time.monotonic_ns())
        self._losses.append(self._since)
        self._since = []
        done = len(self._ends_ns)
        if done == 1:
            self._observer.note(optimizer)
            self._at_start = {THREADS: str(torch.get_num_threads())}
            self._form_at_start = update_form(optimizer)
            running = engine.current()
            if running is not None:
                config = running.config
                self._at_start |= {
                    LIVE_FUSION: str(config.fusion_threshold_nbytes),
                    LIVE_CYCLE: repr(config.cycle_time_s * 1e3),
                }
        if done >= self._plan.steps:
            self._end(ended_itself=False)
            raise SystemExit(0)
        settings = self._starts.get(done)
        if settings is not None:
            # A setting may turn out so slow that the job is stopped: what came before it is known then.
            self._write(ended_itself=False)
            self._change(self._at_start | settings, optimizer)

    def _change(self, settings: dict[str, str], optimizer: torch.optim.Optimizer) -> None:
        """Make settings hold from the next step on."""
        set_num_threads(int(settings[THREADS]))
        if self._fuses:
            set_fused(optimizer, self._form_at_start, wanted=settings.get(FUSED) == "1")
        running = engine.current()
        if running is not None:
            running.change_settings(
                fusion_threshold_nbytes=int(settings[LIVE_FUSION]), cycle_time_s=float(settings[LIVE_CYCLE]) / 1e3
            )

    def _end(self, *, ended_itself: bool) -> None:
        """Leave the last answer, and not from a process that was forked from the rank."""
        if not self._ended and os.getpid() == self._process and self._ends_ns:
            self._ended = True
            self._write(ended_itself=ended_itself)

    def _write(self, *, ended_itself: bool) -> None:
        """Leave an answer in place of the last one."""
        launched = read_launched()
        answer = RankTrial(
            rank=launched.rank,
            size=launched.size,
            begun_ns=self._begun_ns,
            ends_ns=self._ends_ns,
            losses=[_mean(tensors) for tensors in self._losses],
            seen=self._observer.seen(),
            ended_itself=ended_itself,
        )
        target = trial_path(self._plan.folder, launched.rank)
        # A folder that only the host of tl-tune has: what its own ranks say is enough.
        with contextlib.suppress(OSError):
            part = Path(f"{target}.part")
            part.write_bytes(msgspec.json.encode(answer))
            part.replace(target)


def block_starts(plan: TrialPlan) -> dict[int, dict[str, str]]:
    """After how many steps which settings begin to hold."""
    starts, done = {}, 0
    for block in plan.blocks:
        starts[max(done, 1)] = block.settings
        done += block.steps
    return starts


def _mean(tensors: list[torch.Tensor]) -> float | None:
    """Of the losses of a step; JSON has neither nan nor inf."""
    values = [float(tensor) for tensor in tensors]
    return float(np.mean(values)) if values and bool(np.isfinite(values).all()) else None
