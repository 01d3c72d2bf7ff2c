"""What scripts import from `horovod.runner.util.threads`."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_thread(
    target: Callable[..., object],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,  # noqa: FBT001, FBT002  Horovod's signature
    silent: bool = False,  # noqa: FBT001, FBT002
) -> threading.Thread:
    """Call `target` in a thread of its own, which has been started."""
    if not isinstance(args, tuple):
        raise ValueError(f"args={args!r} is not a tuple: write (arg,) for a single argument")

    def run() -> None:
        try:
            target(*args)
        except BaseException:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,  # noqa: FBT001, FBT002  Horovod's signature
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call `fn` with each of `args_list` at the same time.

    Returns:
        results by their place in `args_list`; None if they are not waited for.
    """
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)))
    started = [pool.submit(fn, *each) for each in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {index: future.result() for index, future in enumerate(started)} if block_until_all_done else None
