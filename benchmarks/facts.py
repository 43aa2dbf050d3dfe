"""How many of 50 planted facts a conversation still holds after three compactions whose summaries a real model writes.

    python benchmarks/facts.py BASE_URL [MODEL]

The model writes the summaries only: the turns that read page after page are scripted, so that the engine's own
compaction makes all of its calls. A fact is found where its number, name or date stands in the conversation, however a
number is grouped or a date is written. The same history with a summariser that says nothing shows what the engine
carries by itself; without a BASE_URL only that is measured.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from orchestrator import Limits, Orchestrator, Role, tool
from orchestrator.conversation import Conversation
from orchestrator.events import Compacted, Event, MessageAppended, ModelReplied, Warned
from orchestrator.messages import Delta, Reply, Request, ToolCall, Usage
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.server import Timeouts
from orchestrator.models.tokens import default_output

WINDOW = 8192
"""Tokens."""
FACTS, FILLER = 2, 24
"""Sentences of one page."""
SUMMARIES = 3
"""Compactions after which it is counted: only those are, that replace turns by a summary."""
SHARE = 0.4
"""Of the facts, that must be there then."""
GOAL = "Read the diary page by page. There will be questions about what is in it."
LIMITS = Limits(max_turns=100, tokens=10**7, model_calls=500, time=36_000)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, and the number, name or date by which it is found."""

    value: str
    sentence: str


def read_data() -> tuple[list[Fact], list[str]]:
    """Return the facts, and the sentences between them."""
    text = (Path(__file__).parent / "data" / "facts.txt").read_text(encoding="utf-8")
    facts, filler = re.sub(r"(?m)^#.*\n", "", text).strip().split("\n\n")
    return [Fact(*line.split(" | ")) for line in facts.splitlines()], filler.splitlines()


def pages() -> list[str]:
    """Return the history: the pages with facts first, then as many without."""
    facts, filler = read_data()
    chance, sentences = random.Random(6), cycle(filler)
    made = []
    for at in range(0, 2 * len(facts), FACTS):
        page = list(islice(sentences, FILLER))
        for fact in facts[at : at + FACTS]:
            page.insert(chance.randrange(len(page) + 1), fact.sentence)
        made.append(" ".join(page))
    return made


_DATES = (
    re.compile(r"(?P<y>\d{4})\s*年\s*(?P<m>\d{1,2})\s*月\s*(?P<d>\d{1,2})\s*日?"),
    re.compile(r"(?P<d>\d{1,2})\.?\s+(?P<m>[a-z]{3})[a-z]*,?\s+(?P<y>\d{4})"),
    re.compile(r"(?P<m>[a-z]{3})[a-z]*\s+(?P<d>\d{1,2}),\s+(?P<y>\d{4})"),
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def _iso(found: re.Match[str]) -> str:
    month = found["m"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month) + 1 if month in _MONTHS else 0
    return f"{found['y']}-{number:02}-{int(found['d']):02}"


def normal(text: str) -> str:
    """Write each number without marks between its digits, and each date as 2031-03-14."""
    text = re.sub(r"(?<=\d)[,.'\s](?=\d{3}(?!\d))", "", text.casefold())
    for date in _DATES:
        text = date.sub(_iso, text)
    return text


def held(facts: Sequence[Fact], text: str) -> set[str]:
    """Return which of the facts are in a text."""
    text = normal(text)
    return {fact.value for fact in facts if normal(fact.value) in text}


def names(values: Iterable[str]) -> list[str]:
    """Return those that have no figures: what the engine does not quote by itself."""
    return [value for value in values if not any(map(str.isdigit, value))]


class Reader:
    """Reads page after page, until a summary was made often enough; lets another model make them.

    Args:
        read: How many turns ask for a page at most.
        summarise: Answers what is asked for a summary.
    """

    name, window, max_output = "reader", WINDOW, default_output(WINDOW)

    def __init__(self, read: int, summarise: Callable[[Request], Awaitable[Reply]]) -> None:
        self.read, self.summarise = read, summarise
        self.summed: set[str] = set()

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        _, turn, kind = request.key.split(":")
        if kind != "model":
            self.summed.add(turn)
            return await self.summarise(request)
        number = int(turn)
        reads = number <= self.read and len(self.summed) < SUMMARIES
        calls = (ToolCall(f"call_{number}", "page", f'{{"number": {number}}}'),) if reads else ()
        return Reply("" if calls else "done", calls, usage=Usage(calls=1, prompt=1, estimated_calls=1))

    async def aclose(self) -> None:
        pass


async def nothing(request: Request) -> Reply:
    """Sum up by dropping everything."""
    return Reply("Nothing.", usage=Usage(calls=1, prompt=1, estimated_calls=1))


async def run(summarise: Callable[[Request], Awaitable[Reply]]) -> Sequence[Event]:
    """Return the events of a run that reads all pages."""
    history = pages()

    @tool(effect="read")
    async def page(number: int) -> str:
        """Read a page of the diary. Use it for facts. Returns the page."""
        return f"Page {number}. {history[number - 1]}"

    prompt = "You read the harbour's diary."
    role = Role(name="reader", description="Reads.", prompt=prompt, tools=("page",), limits=LIMITS)
    async with Orchestrator(models={"default": Reader(len(history), summarise)}, roles=[role], tools=[page]) as made:
        result = await made.run_role("reader", GOAL, limits=LIMITS)
        events = await made.journal.events(result.run_id)
    assert result.status == "done", result.failure
    return events


def report(events: Sequence[Event]) -> float:
    """Print what is left of the facts after each compaction; return the share after the last one that counts."""
    facts, _ = read_data()
    conversation, read, summaries, share = Conversation(), "", 0, 0.0
    for event in events:
        match event:
            case MessageAppended():
                conversation.append(event.message, event.key)
                read += event.message.content
            case ModelReplied() if event.content:
                usage = event.usage
                print(
                    f"  a summary: {usage.prompt:,} tokens read, {usage.completion:,} written in {event.seconds:.0f} s"
                )
            case Warned():
                print(f"  {event.text}")
            case Compacted():
                conversation.compact(event)
                summaries += bool(event.became)
                text = "\n".join(message.content for message in conversation.messages)
                planted, there = held(facts, read), held(facts, text)
                share = len(there) / len(planted)
                print(
                    f"compaction {'with summary' if event.became else 'to handles'}, {event.tokens_before:,} to "
                    f"{event.tokens_after:,} tokens: {len(there)} of {len(planted)} facts, {share:.0%}; "
                    f"names {len(names(there))} of {len(names(planted))}"
                )
    assert summaries == SUMMARIES
    return share


async def measure(url: str | None, name: str = "local") -> bool:
    print("With a summariser that says nothing:")
    report(await run(nothing))
    if url is None:
        print("With a real model: not measured; it needs the base URL of one")
        return True
    timeout = Timeouts(read=900, first_byte=900)
    model = OpenAIModel(name, base_url=url, api_key="local", window=WINDOW, params={"temperature": 0}, timeout=timeout)
    print(f"With {name}:")
    events = await run(model.generate)
    await model.aclose()
    share = report(events)
    print(f"facts after {SUMMARIES} summaries: {share:.0%}  bound {SHARE:.0%}")
    return share >= SHARE


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure(*(sys.argv[1:] or [None]))) else 1)
