from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, TextIO

import pytest

from orchestrator.errors import ConfigError
from orchestrator.events import ApprovalAsked
from orchestrator.serve.asking import Asker, read_word

Expects = Literal["approval", "answer", "either"]


def question(expects: Expects = "approval", **more: Any) -> ApprovalAsked:
    asked = ApprovalAsked(
        run="r1", path="ori/a", key="ori/a:1:tool.0", name="send", arguments='{"to": "王"}', why="it goes outside",
        destination="eve@evil.example", sources=("https://a.example/x",), expects=expects,
        parameters={"type": "object"} if expects == "approval" else None,
    )  # fmt: skip
    return replace(asked, **more)


@pytest.mark.parametrize(
    ("line", "expects", "word"),
    [
        ("y", "approval", True),
        ("是", "approval", True),
        ("N", "approval", False),
        ("n ask her first", "approval", "ask her first"),
        ('e {"to": "bob"}', "approval", {"to": "bob"}),
        ("later", "approval", None),
        ("blue, please", "answer", "blue, please"),
        ("later", "answer", None),
        ("y", "either", True),
        ("n", "either", False),
        ("a 43", "either", "43"),
    ],
)
def test_a_line_is_a_word(line: str, expects: Expects, word: Any) -> None:
    assert read_word(line, question(expects)) == word


@pytest.mark.parametrize(
    ("line", "expects"),
    [
        ("", "approval"),
        ("maybe", "approval"),
        ("e {", "approval"),
        ("e 3", "approval"),
        ("", "answer"),
        ("a", "either"),
    ],
)
def test_what_means_nothing_is_asked_again(line: str, expects: Expects) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_word(line, question(expects))


def test_changed_arguments_that_do_not_fit_are_asked_again() -> None:
    with pytest.raises(ConfigError, match=r"do not fit send: \$\.to: 4 is not of type 'string'"):
        read_word('e {"to": 4}', question(parameters={"properties": {"to": {"type": "string"}}}))


class Terminal:
    """Two pipes: what a person types, and what stands on the screen."""

    def __init__(self) -> None:
        there, self._keys = os.pipe()
        self._screen, here = os.pipe()
        self.read: TextIO = os.fdopen(there, "r")
        self.write: TextIO = os.fdopen(here, "w")

    def types(self, text: str) -> None:
        os.write(self._keys, text.encode())

    def leaves(self) -> None:
        os.close(self._keys)
        self._keys = -1

    def shows(self) -> str:
        return os.read(self._screen, 100_000).decode()

    def close(self) -> None:
        for end in (self._keys, self._screen):
            if end >= 0:
                os.close(end)
        self.read.close()
        self.write.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


async def test_a_question_shows_what_why_where_and_what_was_read_before(terminal: Terminal) -> None:
    terminal.types("y\n")
    assert await Asker(terminal.read, terminal.write).approve(question()) is True
    shown = terminal.shows()
    assert '? ori/a wants: send {"to": "王"}' in shown
    assert "it goes outside: eve@evil.example" in shown
    assert "it was read before: https://a.example/x" in shown


async def test_a_model_s_question_is_shown_in_its_own_words(terminal: Terminal) -> None:
    terminal.types("red\n")
    arguments = '{"question": "Which colour?\\nI need one.", "options": ["red", "blue"]}'
    await Asker(terminal.read, terminal.write).approve(question("answer", arguments=arguments, sources=()))
    assert terminal.shows() == "? ori/a asks: Which colour? I need one. (red · blue)\n  your answer · later\n> "


async def test_long_reasons_are_shown_whole_and_without_control_characters(terminal: Terminal) -> None:
    terminal.types("y\n")
    changed = f"its server has changed it\ndescription: {'x' * 3000}\x1b[2J!"
    await Asker(terminal.read, terminal.write).approve(question(why=changed, destination="", parameters=None))
    shown = terminal.shows()
    assert f"  its server has changed it\n  description: {'x' * 3000}[2J!\n" in shown
    assert "e JSON" not in shown


async def test_it_is_asked_until_the_line_means_something(terminal: Terminal) -> None:
    terminal.types("what?\nn not now\n")
    assert await Asker(terminal.read, terminal.write).approve(question()) == "not now"


async def test_questions_come_one_after_another(terminal: Terminal) -> None:
    asker = Asker(terminal.read, terminal.write)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(asker.approve(question()))
        second = group.create_task(asker.approve(question("answer")))
        terminal.types("y\n")
        await first
        terminal.types("blue\n")
    assert (first.result(), second.result()) == (True, "blue")


async def test_a_question_that_somebody_else_answered_leaves_the_keyboard_alone(terminal: Terminal) -> None:
    asker = Asker(terminal.read, terminal.write)
    asking = asyncio.ensure_future(asker.approve(question()))  # noqa: TID251 - it is cancelled, as a run does it
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    terminal.types("y\n")
    assert await asker.approve(question()) is True


async def test_at_the_end_of_the_input_it_is_left_for_later(terminal: Terminal) -> None:
    terminal.leaves()
    assert await Asker(terminal.read, terminal.write).approve(question()) is None
