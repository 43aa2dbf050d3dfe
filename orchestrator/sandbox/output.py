"""What a program prints, kept within a bound however much it is."""

from __future__ import annotations

KEPT = 1_000_000
"""Bytes that are kept: the first half of them and the last."""


class Output:
    """Head and tail of what was printed; what is between them is only counted."""

    def __init__(self, kept: int = KEPT) -> None:
        self._half = kept // 2
        self._head, self._tail = bytearray(), bytearray()
        self.size = 0
        """Bytes printed so far."""

    def add(self, data: bytes) -> None:
        """Take what was printed next."""
        self.size += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """Return it as text, with a note where something is left out; lines are whole where they can be."""
        head, tail = bytes(self._head), bytes(self._tail[-self._half :])
        left = self.size - len(head) - len(tail)
        if left <= 0:
            return (head + tail).decode("utf-8", "replace")
        head = head[: head.rfind(b"\n") + 1] or head
        tail = tail[tail.find(b"\n") + 1 :] or tail
        left = self.size - len(head) - len(tail)
        return f"{head.decode('utf-8', 'replace')}\n[{left} bytes left out]\n{tail.decode('utf-8', 'replace')}"
