"""Runs one command and leaves nothing of it behind: `python warden.py COMMAND …`, in a session of its own.

What the command starts, and what leaves its session or outlives its parent, stays below this process (Linux gives
orphans to the nearest subreaper); all of it is killed when the command ends, or when stdin closes: the caller gave up
or died. The exit code is the command's; 128 + n when the signal n ended it. Stands alone: it imports only what an
interpreter without site-packages starts with quickly.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
SECONDS = 3.0
"""How long it tries to kill what is left; what it may not kill (another user's) outlives it."""


def main(command: list[str]) -> int:
    """Run the command to its end, or to that of the caller."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        run(command)
    code = None
    while code is None:
        ready, _, _ = select.select([0, awake], [], [])
        if 0 in ready:
            break
        os.read(awake, 4096)
        code = reap(child)
    end_all()
    return 128 + signal.SIGKILL if code is None else code


def run(command: list[str]) -> None:
    """Become the command; never returns."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def reap(child: int) -> int | None:
    """Take note of those that ended; return the exit code if the command is among them."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return 128 - code if code is not None and code < 0 else code


def end_all() -> None:
    """Kill everything below this process.

    What is orphaned meanwhile becomes its child, so that there is nothing left once it has no child.
    """
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        below = descendants()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # first stop them all: a fork bomb must not outrun this
            for pid in below:
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def descendants() -> list[int]:
    """Return all living processes below this one."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    below: list[int] = []
    above = {os.getpid()}
    while above:
        above = {pid for pid, parent in parents.items() if parent in above and pid not in below}
        below += above
    return below


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
