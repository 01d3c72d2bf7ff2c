"""Gradients that are submitted many at a time: who says them, and what is left of a submission that was interrupted."""

from .ranks import fork_ranks

PREAMBLE = """
    import threading
    from tlkit.runtime.core import engine
    from tlkit.runtime.core.control.messages import Request
    from tlkit.runtime.core.kinds import Kind
    from tlkit.runtime.torch.prepared import check_outcome, join, submit_together, wait_for_handles

    hvd.init()
    memory = torch.arange(6.0)
    requests = [Request(name=f"allreduce.{name}", kind=Kind.ALLREDUCE, dtype="float32", shape=(3,)) for name in "ab"]
    together = join(requests, list(torch.split(memory, 3)), memory)
    node = engine.current()._control.node
    plain = node.tick
"""


def test_what_is_submitted_in_a_hurry_is_said_by_who_submits_it() -> None:
    """No other thread has to be woken for it."""
    script = (
        PREAMBLE
        + """
    said = []
    def tick():
        said.append((threading.current_thread().name, node.tensor_table.has_unsent))
        plain()
    node.tick = tick
    sums = []
    for _ in range(3):
        handle = submit_together(together)
        assert (threading.current_thread().name, True) in said, said
        said.clear()
        wait_for_handles([handle])
        check_outcome(handle)
        sums.append(memory.tolist())
    answer(sums)
    hvd.shutdown()
    """
    )
    for result in fork_ranks(2, script, {}):
        assert result.answer == [[factor * value for value in range(6)] for factor in (2, 4, 8)]


def test_a_submission_that_is_interrupted_ends_the_job_with_its_cause() -> None:
    """What it has said before, nobody knows."""
    script = (
        PREAMBLE
        + """
    def tick():
        plain()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
    if hvd.rank() == 1:
        node.tick = tick
    try:
        submit_together(together)
    except KeyboardInterrupt:
        node.tick = plain
    try:
        while True:  # the ranks look for the cause for a moment
            hvd.allreduce(torch.ones(1), name="next")
    except hvd.HorovodInternalError as error:
        answer(str(error))
    hvd.shutdown()
    """
    )
    for result in fork_ranks(2, script, {}):
        assert "was interrupted while it submitted" in str(result.answer)
