"""A process that outlives `tl-run` by a moment: ends the ranks and what they have started when `tl-run` is killed.

The kernel tells each rank when its launcher dies, but not the children of the rank: `tl-run … bash train.sh` would leave the
training behind.  The guardian is a shell that reads from a pipe which processes lead the groups of the job.  When the pipe
ends before it was dismissed it ends those groups as `tl-run` does: SIGTERM, so that a training can save, and SIGKILL for what
is left after the grace.
"""

import contextlib
import subprocess
from typing import Final

# `kill -s KILL -- -N` is the one form that every shell takes for a group; dash knows no `--` after -KILL.
_SCRIPT: Final = """
groups=
while read -r what group; do
    case $what in
    watch) groups="$groups $group" ;;
    forget)
        kept=
        for other in $groups; do
            [ "$other" = "$group" ] || kept="$kept $other"
        done
        groups=$kept ;;
    dismiss) exit 0 ;;
    esac
done
for group in $groups; do
    kill -s TERM -- "-$group"
done
waited=0
while [ "$waited" -lt GRACE ]; do
    alive=
    for group in $groups; do
        kill -s 0 -- "-$group" && alive=yes
    done
    [ "$alive" ] || exit 0
    sleep 1
    waited=$((waited + 1))
done
for group in $groups; do
    kill -s KILL -- "-$group"
done
"""

#: How long a rank may take to end after it was asked to, before it gets SIGKILL.
GRACE_S: Final = 5


class Guardian:
    """Ends the process groups that it watches if this process dies without dismissing it."""

    def __init__(self) -> None:
        """Start it.  Where there is no shell, ranks go without: the kernel ends them, if not their children."""
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603  the script above
                ["/bin/sh", "-c", _SCRIPT.replace("GRACE", str(GRACE_S))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )

    @property
    def is_there(self) -> bool:
        """Whether there is one, so that a rank may be asked before it is killed."""
        return self._process is not None

    def watch(self, group: int) -> None:
        """Kill this process group too, if it comes to that."""
        self._tell(f"watch {group}")

    def forget(self, group: int) -> None:
        """The group has ended; its number may be given to another."""
        self._tell(f"forget {group}")

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        self._tell("dismiss")
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it; the ranks go on
            self._process.stdin.write(line.encode("ascii") + b"\n")
            self._process.stdin.flush()
