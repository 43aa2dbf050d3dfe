"""Keeps the conversation of a loop inside its model's window: old results become handles, then the past a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from orchestrator.caller import Caller, Weight
from orchestrator.context import record_key
from orchestrator.conversation import Conversation, counts_of
from orchestrator.errors import ModelError, OutOfBudget
from orchestrator.events import Compacted, Warned
from orchestrator.fences import cut_text, fence
from orchestrator.messages import Message, Request, ToolCall
from orchestrator.models.tokens import ceiling, count, portion
from orchestrator.role import Fitting
from orchestrator.summary import figures, pieces, split_facts, with_facts
from orchestrator.text.relevance import Bm25, gist, read_scores, terms
from orchestrator.toolbox import Toolbox
from orchestrator.workspace.outputs import OUTPUT_PREFIX

GIST = 600
"""Characters that an old result keeps: its beginning, and what has figures in it."""
BEST = 5
"""Turns that a relevance filter keeps besides the last one (R52)."""
SUMMARY_SHARE = 0.1
"""Part of the room for a prompt that a summary may fill, as much the facts noted so far, and as much the figures."""
LEAST_SUMMARY, LONGEST_SUMMARY = 200, 2000
"""Tokens."""
QUOTED, MATERIAL = 120, 4000
"""Characters of one result that are quoted for their figures, and of one message that a summary is made from."""
LEAST_CUT = 200
"""Characters that are left of any message."""


@dataclass(slots=True)
class Window:
    """Sees to it that each request of one loop fits.

    Args:
        caller: Asks for summaries, and knows the window.
        conversation: Of the loop.
        toolbox: Of the loop; its tools weigh, too.
        settings: When to compact, and how.
        goal: What the loop was asked.
        opening: How many messages are the prompt and its examples.
    """

    caller: Caller
    conversation: Conversation
    toolbox: Toolbox
    settings: Fitting
    goal: str = ""
    opening: int = 1
    asked: Counter[int] = field(default_factory=Counter)
    """Model calls made for it before each turn."""

    @property
    def weight(self) -> Weight:
        """What the next prompt is made of."""
        return Weight(self.conversation.system, self.conversation.history, self.toolbox.counts)

    @property
    def tokens(self) -> int:
        """Estimate of the next prompt."""
        return self.caller.meter.tokens(self.weight.whole)

    async def fit(self, turn: int, *, overflowed: bool = False) -> bool:
        """Compact the conversation if the next prompt is too long; True: it has become shorter.

        Args:
            turn: The turn that comes next.
            overflowed: The server has said that it is too long, whatever the estimate says.
        """
        before, room = self.tokens, self.caller.room
        most = int(self.settings.compact_at * room)
        if overflowed:
            most = min(most, before // 2)
        elif before <= most:
            return False
        draft = _Draft(self, turn, before, min(most, int(self.settings.keep * room)), most)
        await draft.make()
        if (change := draft.change(before)) is None:
            return False
        self.conversation.compact(change)
        change = replace(change, tokens_after=self.tokens, hash=self.conversation.hash)
        self.caller.context.log.add(change)
        return change.tokens_after < before


@dataclass(slots=True)
class _Draft:
    """One compaction on its way.

    Args:
        window: Whose conversation it is.
        turn: The turn that comes next.
        tokens: Estimate of the prompt as it stands.
        aim: Tokens that it should have.
        most: Tokens that it may have.
    """

    window: Window
    turn: int
    tokens: int
    aim: int
    most: int
    messages: tuple[Message, ...] = ()
    keys: tuple[str, ...] = ()
    calls: Mapping[str, ToolCall] = field(default_factory=dict)
    """All calls by id."""
    sizes: list[int] = field(default_factory=list)
    """Tokens of each message."""
    start: int = 0
    """Where the loop's own turns begin: what is before stays."""
    last: int = 0
    """Where the last turn begins: it stays, too."""
    shortened: dict[int, str] = field(default_factory=dict)
    became: list[int | Message] | None = None
    """What stands for the turns before the last one."""

    def __post_init__(self) -> None:
        conversation = self.window.conversation
        self.messages, self.keys = conversation.messages, conversation.keys
        self.calls = {call.id: call for message in self.messages for call in message.calls}
        self.sizes = [self._size(message) for message in self.messages]
        own = [
            i
            for i in range(self.window.opening, len(self.messages))
            if self.messages[i].role == "assistant" or self._stands_for_others(i)
        ]
        self.start = own[0] if own else len(self.messages)
        self.last = own[-1] if own else len(self.messages)

    async def make(self) -> None:
        """Take out what matters least, until the rest fits."""
        self._results_to_handles()
        if self.tokens > self.aim:
            await self._replace_the_past()
        if self.tokens > self.most:
            self._cut_inside()

    def change(self, before: int) -> Compacted | None:
        """Return what is to become of the conversation, which had so many tokens; None: nothing."""
        kept = range(0) if self.became is None else range(self.start, self.last)
        gone = set(kept) - {i for i in self.became or () if isinstance(i, int)}
        shortened = tuple((i, text) for i, text in sorted(self.shortened.items()) if i not in gone)
        if not shortened and self.became is None:
            return None
        return Compacted(
            path=self.window.caller.path,
            key=record_key(self.window.caller.path, self.turn, "summary"),
            shortened=shortened,
            start=kept.start,
            end=kept.stop,
            became=tuple(self.became or ()),
            tokens_before=before,
            tokens_after=0,
            hash="",
        )

    # old results become handles

    def _results_to_handles(self) -> None:
        for i in range(self.start, self.last):
            if self.tokens <= self.aim:
                return
            text = self.messages[i].content
            if self._is_result(i) and (len(text) > 2 * GIST or self.messages[i].images):
                shown = gist(text, GIST)
                if sources := self.messages[i].untrusted:
                    shown = fence(self.window.caller.context, shown, sources)
                self._shorten(i, f"{shown}\n{self._text('shortened', handle=self._kept(i))}")

    def _is_result(self, i: int) -> bool:
        """Whether it is the result of a tool; those of a planner's tool are told anew from its plan."""
        call = self.calls.get(self.messages[i].call_id or "")
        tool = self.window.toolbox.tools.get(call.name) if call else None
        return self.messages[i].role == "tool" and not (tool and tool.digest)

    def _kept(self, i: int) -> str:
        """Return the handle of the whole text of a message."""
        message, workspace = self.messages[i], self.window.caller.context.workspace
        text = message.content
        key = self.keys[i] or f"{self.window.caller.path}:{sha256(text.encode()).hexdigest()[:12]}"
        if not workspace.outputs.holds(key):
            workspace.outputs.store(key, text, message.untrusted)
        return OUTPUT_PREFIX + key

    def _shorten(self, i: int, text: str) -> None:
        if images := self.messages[i].images:
            text += "\n" + self._text("image_left_out", files=", ".join(image.path for image in images))
        self.shortened[i] = text
        size = self._size(replace(self.messages[i], content=text, images=()))
        self.tokens += size - self.sizes[i]
        self.sizes[i] = size

    # the past becomes a summary

    async def _replace_the_past(self) -> None:
        past = range(self.start, self.last)
        kept = await self._stays()
        gone = [i for i in past if i not in kept]
        if all(map(self._stands_for_others, gone)):
            return
        sources = tuple(dict.fromkeys(source for i in gone for source in self.messages[i].untrusted))
        summary = await self._summary(gone, sources) if self.window.settings.how == "summarise" else ""
        if sources:
            summary = fence(self.window.caller.context, summary, sources)
        stands_for_it = Message("data", self._told(gone, summary), untrusted=sources)
        self.became = [stands_for_it, *sorted(kept)]
        self.tokens += self._size(stands_for_it) - sum(self.sizes[i] for i in gone)

    async def _stays(self) -> set[int]:
        """Choose what stays of the past: the user's words, then the latest turns or the most relevant ones."""
        groups = list(self._groups())
        kept = {i for group in groups if self.messages[group[0]].role == "user" for i in group}
        groups = [group for group in groups if not kept.intersection(group) and not self._stands_for_others(group[0])]
        room = self.aim - self.tokens - 3 * self._summary_tokens
        room += sum(self.sizes[i] for i in range(self.start, self.last) if i not in kept)
        for number, group in enumerate(await self._in_order(groups)):
            room -= sum(self.sizes[i] for i in group)
            if room < 0 or (number == BEST and self.window.settings.relevance != "off"):
                break
            kept.update(group)
        return kept

    def _groups(self) -> Iterator[range]:
        """Split the past: a reply with all its results, or words of the user."""
        begin = self.start
        for i in range(self.start + 1, self.last + 1):
            if i == self.last or self.messages[i].role in ("assistant", "user"):
                if i > begin:
                    yield range(begin, i)
                begin = i

    async def _in_order(self, groups: Sequence[range]) -> list[range]:
        """Put the turns first that should stay most."""
        latest = list(reversed(groups))
        if self.window.settings.relevance == "off" or not latest:
            return latest
        texts = ["\n".join(self._material(group)) for group in latest]
        if self.window.settings.relevance == "lexical":
            scores = Bm25(list(map(terms, texts))).scores(f"{self.window.goal}\n{self.window.conversation.last_text()}")
        else:
            scores = read_scores(await self._ranking(texts), len(texts))
        return [group for _, group in sorted(zip(scores, latest, strict=True), key=lambda pair: -pair[0])]

    async def _ranking(self, texts: Sequence[str]) -> str:
        room = self.most - self._summary_tokens - self._weigh(self._text("rank"))
        each = max(40, room // (2 * len(texts)))
        shown = "\n\n".join(f"[{n}] {text[: portion(text, each)]}" for n, text in enumerate(texts, 1))
        return await self._ask("rank", self._text("rank"), self._text("rank_input", goal=self.window.goal, turns=shown))

    async def _summary(self, gone: Iterable[int], sources: tuple[str, ...]) -> str:
        """Let the model sum up, piece by piece where it does not fit into one prompt; noted facts are not told anew."""
        prompt, facts = self._text("summary", tokens=self._summary_tokens), list[str]()
        room = max(self.most - self._weigh(prompt) - 2 * self._summary_tokens, self._summary_tokens)
        summary = self._noted("summary")
        new = (i for i in gone if not self._stands_for_others(i))
        for piece in pieces(self._material(new), room, self._weigh):
            asked = self._text("summary_input", goal=self.window.goal, earlier=summary, piece=piece)
            if not (said := await self._ask("summary", prompt, asked)):
                break
            told, noted = split_facts(said)
            summary, facts = told or summary, facts + noted
        if summary:
            self._note("summary", summary, sources)
        listed = self._listed("facts", facts, self._list_tokens, sources)
        quoted = self._listed("figures", self._figures(gone), self._list_tokens, sources)
        return with_facts(summary, filter(None, (listed, quoted)))

    def _figures(self, gone: Iterable[int]) -> Iterator[str]:
        """Quote from each result the figures that the model has not noted."""
        noted = self._noted("facts").splitlines()
        for i in filter(self._is_result, gone):
            if told := figures(self.messages[i].content, noted, QUOTED, but=OUTPUT_PREFIX):
                yield f"- {told} ({self._kept(i)})"

    async def _ask(self, kind: Literal["summary", "rank"], prompt: str, asked: str) -> str:
        """Make a call of the engine's own; nothing when there is no answer."""
        caller = self.window.caller
        messages = (Message("system", prompt), Message("user", asked))
        key = record_key(caller.path, self.turn, kind, self.window.asked[self.turn])
        self.window.asked[self.turn] += 1
        request = Request(key, messages, params=caller.role.params, max_output=self._summary_tokens)
        try:
            reply = await caller.call(request, Weight(*(counts_of(message) for message in messages)))
        except (ModelError, OutOfBudget) as error:
            text = f"compacted without the model's words: {error}"
            caller.context.log.add(Warned(path=caller.path, key=key, text=text))
            return ""
        text = reply.content.strip()
        return text[: portion(text, 2 * self._summary_tokens)]  # not every server keeps to the limit

    @property
    def _summary_tokens(self) -> int:
        return max(LEAST_SUMMARY, self._list_tokens)

    @property
    def _list_tokens(self) -> int:
        return min(int(SUMMARY_SHARE * self.window.caller.room), LONGEST_SUMMARY)

    def _material(self, indices: Iterable[int]) -> Iterator[str]:
        """Word what a summary is made from."""
        for i in indices:
            message = self.messages[i]
            text = message.content
            if len(text) > MATERIAL:
                text = f"{text[: MATERIAL * 2 // 3]}\n…\n{text[-MATERIAL // 3 :]}"
            match message.role:
                case "assistant":
                    asked = "".join(f"\n(calls {call.name} {call.arguments[:500]})" for call in message.calls)
                    yield f"Agent: {text}{asked}"
                case "tool":
                    call = self.calls.get(message.call_id or "")
                    yield f"Result of {call.name if call else 'a call'} ({OUTPUT_PREFIX}{self.keys[i]}): {text}"
                case "data":
                    yield text

    # what the engine itself carries over

    def _told(self, gone: Sequence[int], summary: str) -> str:
        """Word what stands for the past: a summary, and what no summariser can drop."""
        context, window = self.window.caller.context, self.window
        plans = [tool.digest(self._summary_tokens) for tool in window.toolbox.tools.values() if tool.digest]
        written = [a.path for a in context.workspace.changes.artifacts() if a.by == window.caller.path]
        head = "\n".join(message.content for message in self.messages[: self.start])
        return self._text(
            "compacted",
            summary=summary.replace("</summary", "<\\/summary"),
            constraints="\n".join(f"- {words}" for words in context.constraints if words not in head),
            plan="\n".join(plans),
            files=", ".join(written),
            outputs=self._outputs(gone),
        )

    def _outputs(self, gone: Sequence[int]) -> str:
        """List what can be read again."""
        lines = []
        for i in gone:
            call = self.calls.get(self.messages[i].call_id or "")
            if call and self._is_result(i) and len(self.messages[i].content) > LEAST_CUT:
                lines.append(f"- {self._kept(i)} ({call.name} {call.arguments[:100]})")
        return self._listed("outputs", lines, self._summary_tokens // 2)

    def _listed(self, name: str, new: Iterable[str], room: int, sources: tuple[str, ...] = ()) -> str:
        """Add lines to a list that is an output itself; return the latest of them that fit into so many tokens."""
        lines = list(dict.fromkeys([*self._noted(name).splitlines(), *new]))
        if not lines:
            return ""
        handle = self._note(name, "\n".join(lines), sources)
        shown: list[str] = []
        for line in reversed(lines):
            room -= self._weigh(line)
            if room < 0:
                shown.append(f"- {handle} (the list of all {len(lines)})")
                break
            shown.append(line)
        return "\n".join(reversed(shown))

    def _noted(self, name: str) -> str:
        """Return what earlier compactions of the loop have noted under a name."""
        outputs, key = self.window.caller.context.workspace.outputs, f"{self.window.caller.path}:{name}"
        return outputs.read(OUTPUT_PREFIX + key) if outputs.holds(key) else ""

    def _note(self, name: str, text: str, sources: tuple[str, ...] = ()) -> str:
        return self.window.caller.context.workspace.outputs.store(f"{self.window.caller.path}:{name}", text, sources)

    # a message that alone is too long

    def _cut_inside(self) -> None:
        """Cut the longest messages to one length, so that all of them fit."""
        kept = {i for i in self.became or range(self.start, self.last) if isinstance(i, int)}
        there = [i for i in range(len(self.messages)) if not self.start <= i < self.last or i in kept]
        uncut = {"system": float("inf"), "assistant": 2 * self.window.caller.output}  # not all servers keep to limits
        there = [i for i in there if self.sizes[i] > uncut.get(self.messages[i].role, 0)]
        level = ceiling([self.sizes[i] for i in there], self.most - self.tokens + sum(self.sizes[i] for i in there))
        for i in there:
            text = self.shortened.get(i, self.messages[i].content)
            at = max(LEAST_CUT, int(len(text) * level / max(self.sizes[i], 1) * 0.9))  # the note that is put in weighs
            if self.sizes[i] > level and (at < len(text) or self.messages[i].images):
                self._shorten(i, cut_text(self.window.caller.context, text, self._kept(i), at))

    # small things

    def _stands_for_others(self, i: int) -> bool:
        return self.keys[i].rpartition(":")[2] == "summary"

    def _size(self, message: Message) -> int:
        return self.window.caller.meter.tokens(counts_of(message))

    def _weigh(self, text: str) -> int:
        return self.window.caller.meter.tokens(count(text))

    def _text(self, name: str, **values: object) -> str:
        return self.window.caller.context.text(name, **values)
