"""Faults of sets of ranks, in turn, in a window of steps; stops, calls, threads; four ranks; other load on the machine."""

from case import Case

TWO, FOUR = (0, 1), (0, 1, 2, 3)
_SMALL = ("--channels", "4", "--batch-size", "4")
"""So that two cores carry four ranks."""
_FORWARD, _LOOP = ("slow-forward",), ("slow-host-code",)
_IN_TURN = "slow-forward:rank=0,ms=80,every=2,at=1+slow-forward:rank=1,ms=80,every=2"
_TWO_KINDS = "slow-forward:rank=1,ms=60+slow-dataset:rank=0,ms=30"

STRAGGLERS = (
    Case("two of four ranks slow", "slow-forward:rank=1/3,ms=150", "straggler", _FORWARD, (1, 3), _SMALL, size=4),
    Case("three of four ranks slow", "slow-forward:rank=0/1/3,ms=80", "straggler", _FORWARD, (0, 1, 3), _SMALL, size=4),
    Case("two ranks slow in turn", _IN_TURN, "straggler", (), TWO),
    Case("four ranks, rank 2 slow in backward", "slow-backward:rank=2,ms=40", "straggler", (), (2,), _SMALL, size=4),
    Case("four ranks, slow loader on two", "slow-dataset:rank=0/2,ms=60", "data", (), (0, 2), _SMALL, size=4),
    Case("rank 1 slow in a window", "slow-forward:rank=1,ms=150,from=20,to=40", "straggler", (), (1,)),
    Case("rank 1 growing slower", "slow-forward:rank=1,ms=0,grow=2", "straggler", (), (1,)),
    Case(
        "rank 1 slow in forward, rank 0 in the loader",
        _TWO_KINDS,
        "straggler",
        _FORWARD,
        (1,),
        clean_only=("--fault", "slow-dataset:rank=0,ms=30"),
    ),
    Case("busy loop on rank 1", "busy-host:rank=1,ms=40", "straggler", _LOOP, (1,)),
    Case("sleeping loop on rank 0", "slow-host:rank=0,ms=60", "straggler", _LOOP, (0,)),
    Case("busy backward on rank 0", "busy-backward:rank=0,ms=30", "straggler", ("slow-backward",), (0,)),
    Case("validation on rank 0", "validation:rank=0,count=30", "straggler", (), (0,)),
    Case(
        "process sets, rank 3 slow",
        "slow-forward:rank=3,ms=80",
        "straggler",
        _FORWARD,
        (3,),
        (*_SMALL, "--pairs"),
        size=4,
    ),
    Case(
        "uneven pipeline",
        "none",
        "straggler",
        (),
        (1,),
        faulty_only=("--blocks", "3/9"),
        ddp="instrument",
        script="pipeline.py",
        also=("compute",),
    ),
)
EVERYWHERE = (
    Case("busy loop everywhere", "busy-host:ms=40", "compute", ("host-code",), TWO),
    Case("checkpoints of all ranks", "checkpoint:ms=400", "compute", (), TWO),
    Case("validation on all ranks", "validation:count=30", "compute", (), TWO),
    Case("slow optimizer everywhere", "slow-optimizer:ms=40", "compute", (), TWO),
    Case("every seventh forward slow everywhere", "slow-forward:ms=300,every=7", "compute", (), TWO),
    Case(
        "data slow at the start of epochs",
        "slow-dataset:ms=400,from=1,to=1",
        "data",
        (),
        TWO,
        ("--epoch", "10"),
    ),
    Case("eight workers on two cores", "slow-transform:ms=60", "data", (), TWO, ("--workers", "8"), also=("compute",)),
    Case("interpreter's lock held on rank 1", "gil:rank=1,ms=30", "straggler", (), (1,)),
    Case("interpreter's lock held everywhere", "gil:ms=30", "compute", (), TWO),
    Case("calls that hold the interpreter's lock on rank 0", "gil-call:rank=0,ms=50", "straggler", (), (0,)),
)
#: Metrics, small objects and barriers cost agreement, whatever the transport.
CALLS = (
    Case("fifteen metrics", "metrics:count=15", "communication", (), TWO),
    Case("metrics every tenth step", "metrics:count=150,every=10", "communication", (), TWO),
    Case("broadcast_object each step", "broadcast-object:count=10", "communication", (), TWO),
    Case("allgather_object each step", "allgather-object:count=10", "communication", (), TWO),
    Case("a barrier each step", "barrier", "communication", (), TWO, also=("healthy",)),
    Case("twenty barriers each step", "barrier:count=20", "communication", (), TWO),
    # Costs nothing: a rank that waits has its request sent at once.
    Case("a cycle time of 50 ms", "none", "healthy", environment={"HOROVOD_CYCLE_TIME": "50"}),
    # Moving the bytes is the fault: through shared memory updating them takes as long.
    Case("two huge tensors", "two-huge", "communication", ("oversize-gradient",), TWO, transport="gloo"),
)
OTHER_LOAD = (
    Case("none, four ranks", "none", "healthy", arguments=_SMALL, size=4),
    Case("none, other load", "none", "healthy", has_load=True),
    Case("slow forward on rank 1, other load", "slow-forward:rank=1,ms=50", "straggler", (), (1,), has_load=True),
    Case("slow dataset, other load", "slow-dataset:ms=60", "data", (), TWO, has_load=True),
)
RECORDED_DDP = tuple(
    Case(f"recorded DDP: {name}", fault, class_, (), ranks, arguments, ddp="instrument", size=size, also=also)
    for name, fault, class_, ranks, arguments, size, also in (
        ("none, four ranks", "none", "healthy", (), _SMALL, 4, ()),
        ("two of four ranks slow", "slow-forward:rank=1/3,ms=80", "straggler", (1, 3), _SMALL, 4, ()),
        ("two ranks slow in turn", _IN_TURN, "straggler", TWO, (), 2, ()),
        ("slow backward on rank 1", "slow-backward:rank=1,ms=40", "straggler", (1,), (), 2, ()),
        ("slow optimizer on rank 0", "slow-optimizer:rank=0,ms=40", "straggler", (0,), (), 2, ()),
        ("busy loop on rank 1", "busy-host:rank=1,ms=40", "straggler", (1,), (), 2, ()),
        ("slow in a window", "slow-forward:rank=1,ms=150,from=20,to=40", "straggler", (1,), (), 2, ()),
        ("validation on rank 0", "validation:rank=0,count=30", "straggler", (0,), (), 2, ()),
        ("checkpoints of all ranks", "checkpoint:ms=400", "compute", TWO, (), 2, ()),
        ("fifteen metrics", "metrics:count=15", "communication", TWO, (), 2, ()),
        ("broadcast_object each step", "broadcast-object:count=10", "communication", TWO, (), 2, ()),
        ("a barrier each step", "barrier", "communication", TWO, (), 2, ("healthy",)),
        ("interpreter's lock held on rank 1", "gil:rank=1,ms=30", "straggler", (1,), (), 2, ()),
        ("process groups, rank 3 slow", "slow-forward:rank=3,ms=80", "straggler", (3,), (*_SMALL, "--pairs"), 4, ()),
    )
)
HARD_CASES = STRAGGLERS + EVERYWHERE + CALLS + OTHER_LOAD + RECORDED_DDP
