"""What others said, as a loop reads it: inside a fence, and a long text as its head with a handle to the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from orchestrator.context import RunContext
from orchestrator.models.tokens import portion
from orchestrator.results import Outcome

LEAST = 500
"""Characters that every outcome gets at least."""


def fence(context: RunContext, text: str, sources: Sequence[str]) -> str:
    """Put a fence around what strangers may have written, which the text cannot close."""
    named = ", ".join(sources).replace('"', "'")
    return context.text("untrusted", source=named, text=text.replace("</untrusted", "<\\/untrusted"))


def cut_text(context: RunContext, text: str, handle: str, at: int) -> str:
    """Keep so many characters of a long text, its head and its tail, and say where the whole of it is."""
    head, tail = at * 2 // 3, at // 3
    note = context.text("cut", left=len(text) - head - tail, total=len(text), handle=handle)
    return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"


def sources_of(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Return what strangers may have written that these outcomes may carry words of."""
    return tuple(dict.fromkeys(source for outcome in outcomes for source in outcome.untrusted))


def show_outcome(context: RunContext, outcome: Outcome, tokens: int, most: int | None = None) -> str:
    """Return an outcome as other loops read it: fenced as data, a long one as its head and a handle.

    Args:
        context: The run.
        outcome: What is shown.
        tokens: That it may fill; it gets `LEAST` characters all the same.
        most: Characters that it may fill.
    """
    text = outcome.answer
    if not text and outcome.value is not None:
        text = orjson.dumps(outcome.value).decode()
    limit = min(max(LEAST, portion(text, tokens)), most or len(text))
    if len(text) > limit:
        handle = context.workspace.outputs.store(f"{outcome.path}:answer", text, outcome.untrusted)
        text = f"{text[:limit]}\n[{limit} of {len(text)} characters; the whole is {handle}]"
    if outcome.failure:
        text = f"{text}\n({outcome.failure.message})".strip()
    return fenced(outcome.id, outcome.role, outcome.status, text, [artifact.path for artifact in outcome.artifacts])


def fenced(id: str, by: str, status: str, text: str, files: Sequence[str] = ()) -> str:
    """Return a result with a fence around it that its text cannot close."""
    body = text.replace("</outcome", "<\\/outcome") or "(no answer)"
    written = f' files="{", ".join(files)}"' if files else ""
    return f'<outcome id="{id}" by="{by}" status="{status}"{written}>\n{body}\n</outcome>'
