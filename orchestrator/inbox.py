"""A word of a person on a call that waits, from whichever program: found, checked, and stored once."""

from __future__ import annotations

import time

from orchestrator.errors import ConfigError, nearest
from orchestrator.events import ApprovalAsked
from orchestrator.journal import Journal, Signal, SignalKind
from orchestrator.messages import Json
from orchestrator.people import kept
from orchestrator.schema import problems


async def give_word(journal: Journal, run: str, call: str, kind: SignalKind, by: str, **data: Json) -> Signal:
    """Store a word on a call, and return the one that counts: this one, unless somebody was quicker.

    Args:
        journal: Holds the run.
        run: Its id.
        call: Key of the call, or an end of it that no other waiting call has.
        kind: `approve`, `deny` or `answer`.
        by: Whose word it is.
        **data: `arguments` to use instead, `why` it is denied, or the `text` of the answer.

    Raises:
        ConfigError: No such call waits, or the word does not fit it.
        JournalError: There is no such run, or the log cannot be written.
    """
    questions = await journal.questions(run)
    found = [question for question in questions if _means(call, question.key)]
    if not found:
        given = [signal for signal in await journal.signals(run) if signal.key and _means(call, signal.key)]
        if given:
            return given[0]
        known = [question.key for question in questions]
        raise ConfigError(f"run {run} has no call {call!r} that waits{nearest(call, known) or '; nothing waits'}")
    if len(found) > 1:
        raise ConfigError(f"{call!r} fits {len(found)} calls: {', '.join(q.key for q in found)}; give more of the key")
    [question] = found
    _check(question, kind)
    if "arguments" in data:
        check_arguments(question, data["arguments"])
    signal = Signal(run=run, key=question.key, kind=kind, by=by, at=time.time(), data=kept(data))
    return await journal.send(signal)


def _means(call: str, key: str) -> bool:
    return key == call or key.endswith((f"/{call}", f":{call}"))


def _check(question: ApprovalAsked, kind: SignalKind) -> None:
    fits = {"approval": ("approve", "deny"), "answer": ("answer", "deny"), "either": ("approve", "deny", "answer")}
    if kind not in fits[question.expects]:
        raise ConfigError(f"{question.key} waits for another word: {' or '.join(fits[question.expects])}")


def check_arguments(question: ApprovalAsked, arguments: Json) -> None:
    """Hold arguments to use instead against what the tool takes.

    Raises:
        ConfigError: They do not fit, or the question has none to change.
    """
    if question.parameters is None:
        instead = "; give the right result with `answer`" if question.expects == "either" else ""
        raise ConfigError(f"{question.key} has no arguments to change{instead}")
    if faults := problems(arguments, question.parameters):
        raise ConfigError(f"the arguments do not fit {question.name}: {'; '.join(faults[:10])}")
