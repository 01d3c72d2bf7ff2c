"""Plays a plan."""

from .clock import Clock
from .network import Network
from .plan import Plan
from .recording import RankRecording, Recording
from .training import Rank


def play(plan: Plan) -> Recording:
    """What the job leaves behind."""
    clock = Clock()
    recordings = [RankRecording() for _ in range(plan.job.ranks)]
    network = Network(clock, plan, recordings)
    for rank, recording in enumerate(recordings):
        clock.start(Rank(clock, plan, network, rank, recording).train())
    clock.run()
    return Recording(recordings, plan.job.warm_up)
