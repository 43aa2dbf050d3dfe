"""The questions that one run puts to people, and the words that come back from its own program or any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

import orjson

from orchestrator.errors import ConfigError, JournalError
from orchestrator.events import ApprovalAsked, SignalTaken, Warned
from orchestrator.journal import Journal, Signal, SignalKind
from orchestrator.journal.log import RunLog
from orchestrator.messages import Json

Approve = Callable[[ApprovalAsked], Awaitable["bool | str | Mapping[str, Json] | None"]]
"""Asks somebody in this program. True: yes; False: no; a mapping: yes, with these arguments; a text: the answer, or,
where yes or no was asked, no and why; None: the word will come later, through the handle or from another process."""

PROGRAM = "the program"
"""Whose word it is that `approve` gives, unless somebody says who sits there."""


class People:
    """Whom one run can ask.

    Args:
        log: Of the run.
        journal: Holds the words.
        approve: Asks somebody in this program.
        cancelled: Called when somebody cancels the run.
        parked: Called when nothing works any more, and nobody in this program answers.
    """

    def __init__(
        self,
        log: RunLog,
        journal: Journal,
        approve: Approve | None,
        *,
        cancelled: Callable[[], object],
        parked: Callable[[], object],
    ) -> None:
        self._log, self._journal, self._approve = log, journal, approve
        self._cancelled, self._parked = cancelled, parked
        self.who = PROGRAM
        """Whose word it is that `approve` gives."""
        self.attended = approve is not None
        """Somebody in this program answers: the run waits, instead of ending until it is resumed."""
        self.waiting: dict[str, ApprovalAsked] = {}
        """What was asked and has no answer, by key."""
        self._words: dict[str, Signal] = {}
        self._recorded: Collection[str] = ()
        """Questions whose word comes from a recording."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._read = 0
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._working: Callable[[], bool] = lambda: True

    @property
    def reachable(self) -> bool:
        """Whether a question can come to anybody: here, or where the log is kept; or came to somebody once."""
        return bool(self.attended or self._approve or self._journal.durable or self._recorded)

    @asynccontextmanager
    async def open(self, recorded: Mapping[str, Signal]) -> AsyncIterator[None]:
        """Listen to people inside the block.

        Args:
            recorded: What people said when the run was recorded that this one replays, by key.
        """
        self._words, self._recorded = dict(recorded), recorded.keys()
        signals = await self._journal.signals(self._log.run)
        self._read = len(signals)
        for signal in signals:
            self._words.setdefault(signal.key, signal)
        self.waiting = {question.key: question for question in await self._journal.questions(self._log.run)}
        async with self._group:
            listening = self._group.create_task(self._listen())
            try:
                with self._journal.watch(self._changed.set):
                    yield
            finally:
                for task in (listening, *self._asking.values()):
                    task.cancel()

    def rest(self, working: Callable[[], bool]) -> None:
        """Let the run end here, until it is resumed, if nothing works and nobody in this program answers.

        Args:
            working: Tells whether anything works.
        """
        self._working = working
        self._changed.set()  # a word may have come that nobody has read

    async def _listen(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            with suppress(JournalError):  # the next word makes it read again
                await self._refresh()
            if not (self._working() or self.attended or self._asking or self.answered(self.waiting)):
                self._parked()

    async def _refresh(self) -> None:
        """Take in what people have said by now."""
        signals = await self._journal.signals(self._log.run)
        new, self._read = signals[self._read :], len(signals)
        for signal in new:
            if signal.kind == "cancel":
                self._log.add(SignalTaken(signal="cancel", by=signal.by, data={}))
                self._cancelled()
            elif signal.key not in self._words:
                self._words[signal.key] = signal
                if asking := self._asking.pop(signal.key, None):
                    asking.cancel()  # somebody else was quicker
        self._news.set()

    def ask(self, question: ApprovalAsked) -> None:
        """Put a question, unless it was put or answered before the run was interrupted."""
        key = question.key
        if key in self._words and key not in self._recorded:
            return
        if key not in self.waiting:
            self.waiting[key] = self._log.add(question)
        if self._approve is not None and key not in self._asking and key not in self._words:
            self._asking[key] = self._group.create_task(self._put(self._approve, self.waiting[key]))

    def answered(self, keys: Iterable[str]) -> bool:
        """Whether there is a word on any of these questions."""
        return any(key in self._words for key in keys)

    def word(self, key: str) -> Signal | None:
        """Return the word on a question, if there is one."""
        return self._words.get(key)

    async def wait(self, keys: Collection[str]) -> None:
        """Wait until there is a word on any of these questions."""
        while not self.answered(keys):
            self._news.clear()
            await self._news.wait()

    def take(self, questions: Mapping[str, ApprovalAsked]) -> Signal:
        """Return the earliest word on any of these questions, and record that it is acted on."""
        word = next(word for key, word in self._words.items() if key in questions)
        self.waiting.pop(word.key, None)
        self._log.add(
            SignalTaken(path=questions[word.key].path, key=word.key, signal=word.kind, by=word.by, data=dict(word.data))
        )
        return word

    async def _put(self, approve: Approve, question: ApprovalAsked) -> None:
        """Ask in this program; what fails there leaves the question open, to whoever finds it in the log."""
        try:
            said = await approve(question)
            if said is not None:
                kind, data = _word(said, question)
                now = self._log.now()
                word = Signal(run=self._log.run, key=question.key, kind=kind, by=self.who, at=now, data=data)
                await self._journal.send(word)
        except Exception as error:  # noqa: BLE001 - the program's own code
            text = f"approve failed for {question.key}: {type(error).__name__}: {error}"
            self._log.add(Warned(path=question.path, text=text))
            self.attended = False  # or the run would wait for ever for a program that cannot answer
        finally:
            self._asking.pop(question.key, None)
            self._changed.set()  # the run may have nothing to wait for any more


def kept(data: dict[str, Json]) -> dict[str, Json]:
    """Return what a word says, which the log can keep.

    Raises:
        ConfigError: It is no JSON.
    """
    try:
        orjson.dumps(data)
    except TypeError as error:
        raise ConfigError(f"the word cannot be kept as JSON: {error}") from None
    return data


def _word(said: bool | str | Mapping[str, Json], question: ApprovalAsked) -> tuple[SignalKind, dict[str, Json]]:
    """Return what a program's answer to a question comes to."""
    if isinstance(said, str):
        return ("deny", kept({"why": said})) if question.expects == "approval" else ("answer", kept({"text": said}))
    if isinstance(said, Mapping):
        return "approve", kept({"arguments": dict(said)})
    return ("approve" if said else "deny"), {}
