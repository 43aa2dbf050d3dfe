"""Ctrl-C and SIGTERM: the first stops the work, a second one ends the program at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from orchestrator import bounded
from orchestrator.serve.report import INTERRUPTED

T = TypeVar("T")
GRACE = 1.5
"""Seconds that stopping may take; then the program ends, whatever still hangs. The log holds what was done."""
_SHOW_CURSOR = "\x1b[?25h"


class Interrupt:
    """Runs one coroutine so that it can be stopped from outside."""

    def __init__(self) -> None:
        self.notice = "ori: interrupted"
        """What is said when it was stopped."""
        self._cancel: Callable[[], object] = lambda: None
        self._asked = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end.

        Raises:
            KeyboardInterrupt: It was stopped by a signal; its text is the notice.
        """
        try:
            return bounded.run(self._watched(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt(self.notice) from None

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            with contextlib.suppress(NotImplementedError):  # Windows
                # Wakes the loop: a signal that comes just before it sleeps would wait for the next event.
                loop.add_signal_handler(number, lambda: None)
            # Not the loop's own handler: that one waits while a tool blocks the loop.
            signal.signal(number, self._on_signal)
        try:
            return await work
        finally:
            if not self._asked:
                for number, handler in before.items():
                    with contextlib.suppress(NotImplementedError):
                        loop.remove_signal_handler(number)
                    signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            self._exit()
        self._asked = True
        self._cancel()
        timer = threading.Timer(GRACE, self._exit)
        timer.daemon = True
        timer.start()

    def _exit(self) -> None:
        """End the process now. Nothing here may wait for a lock that hanging code holds."""
        text = (_SHOW_CURSOR if sys.stderr.isatty() else "") + f"\n{self.notice}\n"
        os.write(2, text.encode())
        os._exit(INTERRUPTED)
