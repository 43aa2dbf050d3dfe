"""A conversation only grows, has a hash for all of it, and knows which calls still wait for their answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.codec import decode, encode
from orchestrator.conversation import Conversation
from orchestrator.events import Compacted
from orchestrator.messages import Message, MessageRole, ToolCall
from orchestrator.models.tokens import NOTHING

A, B, C = (ToolCall(id, "look", "{}") for id in "abc")


def said(*messages: Message) -> Conversation:
    return Conversation(messages)


def asks(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, calls)


def answer(call: ToolCall, text: str = "42") -> Message:
    return Message("tool", text, call_id=call.id)


GOAL = Message("user", "统计销售额")


class TestOpenCalls:
    def test_calls_are_open_until_each_has_its_answer(self) -> None:
        conversation = said(GOAL, asks(A, B, C))
        assert conversation.open_calls() == {0: A, 1: B, 2: C}
        conversation.append(answer(B))
        assert conversation.open_calls() == {0: A, 2: C}
        conversation.append(answer(A))
        conversation.append(answer(C))
        assert conversation.open_calls() == {}

    def test_of_two_calls_with_one_id_one_answer_answers_one(self) -> None:
        assert said(GOAL, asks(A, A), answer(A)).open_calls() == {1: A}

    def test_words_of_the_engine_between_answers_are_no_answers(self) -> None:
        conversation = said(GOAL, asks(A, B), answer(A), Message("note", "careful"))
        assert conversation.open_calls() == {1: B}

    def test_answers_of_earlier_calls_do_not_count(self) -> None:
        assert said(GOAL, asks(A), answer(A), asks(B, C)).open_calls() == {0: B, 1: C}

    def test_nothing_is_open_before_the_first_reply_and_after_a_text(self) -> None:
        assert said().open_calls() == said(GOAL).open_calls() == said(GOAL, asks(text="4")).open_calls() == {}


class TestObserved:
    def test_what_tools_and_other_loops_said_since_the_last_reply_is_observed(self) -> None:
        conversation = said(GOAL, asks(A, B), answer(A, "one"), answer(B, "two"), Message("note", "hurry"))
        assert conversation.observed() == "one\n\ntwo"
        conversation.append(asks(C))
        assert conversation.observed() == ""

    def test_the_outcomes_a_worker_starts_with_are_observed(self) -> None:
        assert said(GOAL, Message("note", "Results:"), Message("data", "<outcome/>")).observed() == "<outcome/>"


def test_the_last_text_is_the_last_one_that_is_not_empty() -> None:
    assert said(GOAL).last_text() == ""
    assert said(GOAL, asks(text="first"), asks(A, text="second"), answer(A), asks(B)).last_text() == "second"


def test_the_system_prompt_and_what_follows_are_weighed_apart() -> None:
    conversation = said(Message("system", "x" * 400))
    system = conversation.system
    assert system > NOTHING == conversation.history
    for message in (GOAL, asks(ToolCall("a", "look", '{"name": "' + "x" * 400 + '"}')), answer(A, "x" * 400)):
        before = conversation.history
        conversation.append(message)
        assert conversation.history > before
    assert conversation.system == system


class TestACompaction:
    BEFORE = (Message("system", "S"), GOAL, asks(A), answer(A, "long " * 100), asks(B), answer(B, "two"), asks(C))
    CHANGE = Compacted(
        path="ori",
        key="ori:4:summary",
        shortened=((5, "t"),),
        start=2,
        end=4,
        became=(Message("data", "A was looked up"),),
        tokens_before=200,
        tokens_after=50,
        hash="",
    )

    def test_a_range_gives_way_to_what_it_became_and_shortened_messages_keep_their_place(self) -> None:
        conversation = said(*self.BEFORE)
        conversation.compact(self.CHANGE)
        became = (*self.BEFORE[:2], Message("data", "A was looked up"), asks(B), answer(B, "t"), asks(C))
        assert conversation.messages == became
        assert conversation.keys == ("", "", "ori:4:summary", "", "", "")
        fresh = said(*became)
        assert conversation.hash == fresh.hash
        assert (conversation.system, conversation.history) == (fresh.system, fresh.history)

    def test_what_was_observed_stays_what_it_was_so_that_a_replay_finds_it_again(self) -> None:
        conversation = said(*self.BEFORE[:6])
        conversation.compact(self.CHANGE)
        assert conversation.observed() == "two"
        conversation.append(asks(C))
        assert conversation.observed() == ""

    def test_the_event_survives_the_log(self) -> None:
        assert decode(encode(self.CHANGE)) == self.CHANGE


ROLES: list[MessageRole] = ["system", "user", "assistant", "tool", "note", "data"]
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=st.text(st.characters(codec="utf-8"), max_size=5),
    calls=st.lists(st.sampled_from([A, B, C]), max_size=2).map(tuple),
    call_id=st.none() | st.sampled_from("abc"),
    extra=st.dictionaries(st.sampled_from(["reasoning_content"]), st.text(max_size=3, alphabet="xy"), max_size=1),
)


@given(st.lists(MESSAGES, max_size=6), st.lists(MESSAGES, max_size=6))
def test_equal_hashes_mean_equal_conversations(one: list[Message], other: list[Message]) -> None:
    assert (said(*one).hash == said(*other).hash) == (one == other)


@given(st.lists(MESSAGES, max_size=6), MESSAGES)
def test_it_only_grows_and_can_be_rebuilt_from_its_messages(messages: list[Message], last: Message) -> None:
    conversation = said(*messages)
    before, prefix = conversation.messages, conversation.hash
    conversation.append(last)
    assert before == tuple(messages)
    assert conversation.messages == (*before, last)
    assert len(conversation) == len(messages) + 1
    rebuilt = said(*conversation.messages)
    assert rebuilt.hash == conversation.hash != prefix
    assert (rebuilt.system, rebuilt.history) == (
        conversation.system,
        conversation.history,
    )
