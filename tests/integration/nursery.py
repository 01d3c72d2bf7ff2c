"""Forks ranks from a process that has imported what they need: each is a process of its own, there in milliseconds instead of seconds.

    python nursery.py MODULE…

Reads requests from stdin and answers on stdout, one line of JSON each.  A request names the ranks of one job::

    {"cwd": …, "timeout_s": …, "ranks": [{"code": …, "environment": {…}, "stdout": PATH, "stderr": PATH}, …]}

and the answer is how they ended, as `subprocess` counts: `[0, -9]`; those that did not end in time are killed and said as null.
A rank runs its code as `python -c` does, up to the ordinary end of the interpreter.
"""

import gc
import json
import os
import signal
import sys
import time
import types
from importlib import import_module
from typing import Any


def become(rank: dict[str, Any], cwd: str) -> str:
    """Make this forked process a rank, up to its code, which is returned."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(rank["environment"])
    for descriptor, path in ((0, os.devnull), (1, rank["stdout"]), (2, rank["stderr"])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["-c"]
    return str(rank["code"])


def wait_for(processes: list[int], timeout_s: float) -> list[int | None]:
    """How they ended; kills what has not by the deadline."""
    ended: dict[int, int | None] = {}
    deadline = time.monotonic() + timeout_s
    while len(ended) < len(processes):
        late = time.monotonic() > deadline
        for process in set(processes) - set(ended):
            if late:
                os.kill(process, signal.SIGKILL)
            found, status = os.waitpid(process, 0 if late else os.WNOHANG)
            if found:
                ended[process] = None if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return [ended[process] for process in processes]


def serve() -> str:
    """Answer requests; returns only in a rank, with its code, or at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        processes = []
        for rank in request["ranks"]:
            process = os.fork()
            if process == 0:
                return become(rank, request["cwd"])
            processes.append(process)
        sys.stdout.write(json.dumps(wait_for(processes, request["timeout_s"])) + "\n")
        sys.stdout.flush()
    return ""


if __name__ == "__main__":
    for module in sys.argv[1:]:
        import_module(module)
    gc.freeze()  # or every rank copies all of it when it ends
    code = serve()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main.__dict__)
