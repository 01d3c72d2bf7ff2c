"""Plays a plan."""

from .clock import Clock
from .device import DeviceRank, DeviceRecording, Group, count_work
from .network import Coordinated, Network, Reduced
from .plan import Plan
from .recording import RankRecording, Recording
from .training import Rank


def play(plan: Plan) -> Recording:
    """What the job leaves behind."""
    if plan.job.device is not None:
        return _play_on_devices(plan)
    clock = Clock()
    recordings = [RankRecording() for _ in range(plan.job.ranks)]
    kind: type[Network] = Reduced if plan.job.framework == "ddp" else Coordinated
    network = kind(clock, plan, recordings)
    for rank, recording in enumerate(recordings):
        clock.start(Rank(clock, plan, network, rank, recording).train())
    clock.run()
    return Recording(recordings, plan.job.warm_up)


def _play_on_devices(plan: Plan) -> Recording:
    clock = Clock()
    recordings = [DeviceRecording() for _ in range(plan.job.ranks)]
    network = Reduced(clock, plan, [*recordings])
    group = Group(clock, plan)
    for rank, recording in enumerate(recordings):
        clock.start(DeviceRank(clock, plan, network, rank, recording, group).train())
    clock.run()
    # A host that waits for the step before is one step ahead of its device.
    assert plan.job.device is not None
    ahead = 0 if plan.job.device.ends_with_item else 1
    for recording in recordings:
        count_work(recording, plan.job.warm_up, plan.job.steps - ahead)
    return Recording([*recordings], plan.job.warm_up + ahead)
