"""What used to hang: order, threads, signals, forks, and ranks that are stopped."""

import os
import signal
import time

from .ranks import finish_ranks, run_ranks, start_ranks


def test_a_rank_that_joins_right_after_a_known_tensor() -> None:
    """What it asked for before it joined is done with it, and the name is as usable as before."""
    results = run_ranks(
        2,
        """
        hvd.init()
        rank = hvd.rank()
        for _ in range(3):
            hvd.allreduce(torch.ones(4), name="x", op=hvd.Sum)
        if rank:
            first = hvd.allreduce(torch.ones(4), name="x", op=hvd.Sum)
            hvd.join()
        else:
            time.sleep(0.3)
            handle = hvd.allreduce_async(torch.ones(4), name="x", op=hvd.Sum)
            hvd.join()
            first = hvd.synchronize(handle)
        after = [hvd.allreduce(torch.ones(7), name="x", op=hvd.Sum).tolist() for _ in range(2)]
        hvd.shutdown()
        answer([first.tolist(), *after])
        """,
    )
    assert [result.answer for result in results] == [[[2.0] * 4, [2.0] * 7, [2.0] * 7]] * 2


def test_what_was_asked_for_before_a_set_is_removed_is_done() -> None:
    """Whether its name is known or new."""
    results = run_ranks(
        2,
        """
        hvd.init(process_sets="dynamic")
        done = []
        for known in (False, True):
            alone = hvd.add_process_set([1])
            if alone.included():
                for _ in range(3 * known):
                    hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum, process_set=alone)
                handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum, process_set=alone)
            hvd.remove_process_set(alone)
            done.append(hvd.synchronize(handle).tolist() if hvd.rank() else [])
        hvd.shutdown()
        answer(done)
        """,
    )
    assert results[1].answer == [[1.0, 1.0]] * 2


def test_an_operation_is_done_while_another_thread_waits_for_one_that_is_not() -> None:
    """`poll` becomes true on a rank whose other thread waits."""
    results = run_ranks(
        2,
        """
        import threading
        hvd.init()
        rank = hvd.rank()
        if rank:
            other = threading.Thread(target=lambda: hvd.allreduce(torch.ones(3), name="late"))
            other.start()
            time.sleep(0.3)
        hvd.allreduce(torch.ones(1), name="a")
        handle = hvd.allreduce_async(torch.ones(2), name="polled")
        end = time.monotonic() + 20
        while not hvd.poll(handle) and time.monotonic() < end:
            time.sleep(0.001)
        answer(hvd.poll(handle))
        hvd.synchronize(handle)
        other.join() if rank else hvd.allreduce(torch.ones(3), name="late")
        hvd.shutdown()
        """,
    )
    assert [result.answer for result in results] == [True, True]


def test_a_signal_handler_submits() -> None:
    """Whatever it interrupts; to wait there for what only the interrupted call could bring is an error."""
    results = run_ranks(
        2,
        """
        import faulthandler, signal
        faulthandler.dump_traceback_later(60, exit=True)
        hvd.init()
        handles, refused = [], []
        def handler(*_):
            if len(handles) < 400:
                handles.append(hvd.allreduce_async(torch.ones(1), name=f"signal.{len(handles)}", op=hvd.Sum))
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        count = 0
        while len(handles) < 400:
            hvd.allreduce_async(torch.ones(4), name=f"own.{hvd.rank()}.{count}")
            count += 1
            time.sleep(0.0002)
        values = {hvd.synchronize(handle).item() for handle in handles}
        def waiting(*_):
            try:
                hvd.allreduce(torch.ones(1), name="waited")
            except hvd.HorovodInternalError as error:
                refused.append(str(error))
        signal.signal(signal.SIGALRM, waiting)
        hvd.barrier()
        if hvd.rank():
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # while the call below waits for rank 0
            hvd.allreduce(torch.ones(1), name="interrupted")
        else:
            time.sleep(0.6)
            hvd.allreduce(torch.ones(1), name="interrupted")
        answer([sorted(values), ["signal handler" in text for text in refused]])
        os._exit(0)
        """,
    )
    assert [result.answer for result in results] == [[[2.0], []], [[2.0], [True]]]


def test_a_forked_process_is_told_that_it_is_no_rank() -> None:
    """It may ask who it is; a collective is refused, for a known name too, and the rank itself goes on."""
    results = run_ranks(
        2,
        """
        hvd.init()
        hvd.allreduce(torch.ones(2), name="a")
        reading, writing = os.pipe()
        if os.fork() == 0:
            hvd.init()
            said = [f"{hvd.rank()} of {hvd.size()}"]
            for call in (lambda: hvd.allreduce(torch.ones(2), name="a"), hvd.barrier):
                try:
                    call()
                except hvd.HorovodInternalError as error:
                    said.append(str(error))
            hvd.shutdown()
            os.write(writing, "\\n".join(said).encode())
            os._exit(0)
        os.wait()
        said = os.read(reading, 10_000).decode().splitlines()
        after = hvd.allreduce(torch.ones(1), name="a", op=hvd.Sum).item()
        hvd.shutdown()
        answer([said[0], *("is no rank itself" in line for line in said[1:]), after])
        """,
    )
    assert [result.answer for result in results] == [[f"{rank} of 2", True, True, 2.0] for rank in range(2)]
    for result in results:
        assert "hvd.init() has no effect here: process" in result.stderr


def test_a_death_is_heard_of_while_a_forked_process_lives() -> None:
    """The child holds no connection of its parent's."""
    ranks = start_ranks(
        2,
        """
        hvd.init()
        hvd.allreduce(torch.ones(1), name="a")
        if hvd.rank():
            if os.fork() == 0:
                os.close(1), os.close(2)
                time.sleep(15)
                os._exit(0)
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
        begun = time.monotonic()
        try:
            hvd.allreduce(torch.ones(1), name="a")
        except hvd.HorovodInternalError as error:
            answer([time.monotonic() - begun < 10, "rank 1 on " in str(error)])
        os._exit(0)
        """,
    )
    assert finish_ranks(ranks)[0].answer == [True, True]


def test_a_rank_that_is_stopped_inside_a_collective_is_named() -> None:
    """In the warning, and in what ends the job on the others."""
    ranks = start_ranks(
        3,
        """
        hvd.init()
        tensor = torch.ones(4_000_000)
        hvd.allreduce(tensor, name="x")
        print("READY", flush=True)
        try:
            while True:
                hvd.allreduce(tensor, name="x")
        except hvd.HorovodInternalError as error:
            answer(str(error))
        os._exit(0)
        """,
        {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "15",
        },
    )
    assert ranks[1].stdout is not None
    assert "READY" in ranks[1].stdout.readline()
    time.sleep(0.3)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    try:
        results = [finish_ranks([ranks[rank]])[0] for rank in (0, 2)]
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert "rank 1 on " in results[0].stderr.split("within")[0]
    for result in results:
        assert "rank 1 on " in str(result.answer)
        assert "did not answer: its process is stopped" in str(result.answer)
