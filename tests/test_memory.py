from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.errors import MemoryStoreError, ModelError, ToolError
from orchestrator.failure import Failure, FailureKind
from orchestrator.memory import SHORT_TERM, Memory, Owner, Recollection
from orchestrator.memory.sqlite import SqliteMemory

MIRA, TOM, MORNING = Owner(user="mira"), Owner(user="tom"), Owner(session="morning")


class Clock:
    """Stands still until it is moved."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Meanings:
    """Embeds a text as how often it speaks of boats and of cars, whatever they are called."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.down = False

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        if self.down:
            raise ModelError(Failure(FailureKind.connection, "down"))
        self.asked.append(list(texts))
        return [array("f", [0.1 + ("ferry" in t or "ship" in t), 0.1 + ("lorry" in t or "truck" in t)]) for t in texts]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> SqliteMemory:
    return SqliteMemory(tmp_path / "deep" / "memory.db", clock=clock)


async def add(store: SqliteMemory, *texts: str, owner: Owner = MIRA, **more: object) -> list[Memory]:
    return [await store.add(Memory(text=text, owner=owner, **more)) for text in texts]  # type: ignore[arg-type]


async def found(store: SqliteMemory, query: str, owner: Owner = MIRA) -> list[str]:
    return [memory.text for memory in await store.search(query, owner)]


async def test_what_fits_is_found_in_any_script(store: SqliteMemory) -> None:
    """R53."""
    await add(store, "The budget of 2026 is 40,000 euros.", "仓库在上海浦东。", "Reports go to Ana on Fridays.")
    assert (await found(store, "How large is the budget?"))[0].startswith("The budget")
    assert await found(store, "上海的仓库在哪里") == ["仓库在上海浦东。"]
    assert await found(store, "nothing of the kind 完全无关") == []
    assert await found(store, '?!" OR *') == []


async def test_a_user_sees_only_what_is_theirs(store: SqliteMemory) -> None:
    await add(store, "The code is 1234.")
    await add(store, "The code is 9999.", owner=TOM)
    await add(store, "The code is 5555.", owner=MORNING)
    assert await found(store, "code") == ["The code is 1234."]
    assert await found(store, "code", MORNING) == ["The code is 5555."]
    assert set(await found(store, "code", Owner(user="tom", session="morning"))) == {
        "The code is 9999.",
        "The code is 5555.",
    }
    assert [memory.owner.user for memory in await store.all(TOM)] == ["tom"]
    assert len(await store.all()) == 3


async def test_what_belongs_to_a_session_is_gone_after_a_day(store: SqliteMemory, clock: Clock) -> None:
    await add(store, "The code is 5555.", owner=MORNING, expires=clock.now + SHORT_TERM)
    clock.now += SHORT_TERM - 1
    assert await found(store, "code", MORNING) == ["The code is 5555."]
    clock.now += 2
    assert await found(store, "code", MORNING) == []
    await add(store, "something else")
    assert len(await store.all()) == 1


async def test_what_says_the_same_is_kept_once(store: SqliteMemory) -> None:
    [first] = await add(store, "Ana wants tables in her reports", at=1.0)
    [second] = await add(store, "Ana wants tables in her reports.", at=2.0)
    assert second.id != first.id
    assert [(m.text[-1], m.at) for m in await store.all(MIRA)] == [(".", 2.0)]
    await add(store, "Ana wants tables in her reports.", owner=TOM)
    assert len(await store.all()) == 2


async def test_another_number_is_another_fact(store: SqliteMemory) -> None:
    await add(store, "the price of the lamp in the red shop at the corner is 30 euros today")
    await add(store, "the price of the lamp in the red shop at the corner is 31 euros today")
    assert len(await store.all(MIRA)) == 2


async def test_a_mark_stays_until_somebody_trusted_says_the_same(store: SqliteMemory) -> None:
    await add(store, "Ana's mail is ana@example.org", untrusted=("https://example.org",))
    await add(store, "Ana's mail is ana@example.org", untrusted=("https://example.com",))
    assert [m.untrusted for m in await store.all(MIRA)] == [("https://example.com",)]
    await add(store, "Ana's mail is ana@example.org")
    await add(store, "Ana's mail is ana@example.org", untrusted=("https://example.com",))
    assert [m.untrusted for m in await store.all(MIRA)] == [()]


async def test_what_is_forgotten_is_not_found(store: SqliteMemory) -> None:
    one, other = await add(store, "red lamp", "blue lamp")
    assert await store.forget([one.id, 999]) == 1
    assert await found(store, "lamp") == ["blue lamp"]
    assert await store.forget([other.id]) == 1
    assert await found(store, "lamp") == []


async def test_it_opens_again_and_two_at_a_time_may_write(tmp_path: Path) -> None:
    one, other = SqliteMemory(tmp_path / "m.db"), SqliteMemory(tmp_path / "m.db")
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task((one, other)[number % 2].add(Memory(text=f"lamp number {number}", owner=MIRA)))
    await one.aclose()
    assert len(await one.all(MIRA)) == 20
    await one.aclose()
    await other.aclose()


async def test_a_file_that_is_no_memory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(MemoryStoreError, match=r"m\.db cannot be read"):
        await SqliteMemory(tmp_path / "m.db").all()
    db = sqlite3.connect(tmp_path / "n.db")
    db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(MemoryStoreError, match="schema version 7, expected 1"):
        await SqliteMemory(tmp_path / "n.db").all()


async def test_embeddings_rank_by_meaning_what_the_words_found(tmp_path: Path) -> None:
    meanings = Meanings()
    store = SqliteMemory(tmp_path / "m.db", embedder=meanings)
    await add(store, "The lorry to Oslo leaves at six.", "The ferry to Oslo leaves at nine.")
    assert (await found(store, "When does the ship to Oslo leave?"))[0].startswith("The ferry")
    assert (await found(store, "When does the truck to Oslo leave?"))[0].startswith("The lorry")
    assert meanings.asked[-1] == ["When does the truck to Oslo leave?"]
    meanings.down = True
    await add(store, "The train to Oslo leaves at noon.")
    assert (await found(store, "the train to Oslo"))[0].startswith("The train")
    meanings.down = False
    assert len(await found(store, "Oslo ship")) == 3
    assert meanings.asked[-1] == ["Oslo ship", "The train to Oslo leaves at noon."]
    await store.aclose()


async def test_a_run_recalls_the_profile_first_and_five_at_most(store: SqliteMemory) -> None:
    run = Recollection(store, MIRA, "r1")
    await run.remember("Answers in German, as tables.", kind="profile")
    for number in range(8):
        await run.remember(f"lamp {number} is in room {number}")
    recalled = await run.recall("Which lamp is in room 3?")
    assert len(recalled) == 5
    assert [memory.kind for memory in recalled] == ["profile"] + ["fact"] * 4
    assert recalled[1].text == "lamp 3 is in room 3"
    assert recalled[1].run == "r1"


async def test_a_run_with_a_session_only_remembers_for_a_day(store: SqliteMemory, clock: Clock) -> None:
    run = Recollection(store, MORNING, "r1")
    kept = await run.remember("lamp 1")
    assert kept.expires == pytest.approx(kept.at + SHORT_TERM, abs=5)


async def test_a_run_of_nobody_remembers_nothing_and_says_so(store: SqliteMemory) -> None:
    run = Recollection(store, Owner(), "r1")
    assert await run.recall("lamp") == []
    with pytest.raises(ToolError, match="neither a user nor a session"):
        await run.remember("lamp 1")
    with pytest.raises(ToolError, match="empty"):
        await Recollection(store, MIRA, "r1").remember("  ")


async def test_a_secret_is_not_kept(store: SqliteMemory) -> None:
    run = Recollection(store, MIRA, "r1", redact=lambda text: text.replace("s3cret", "[redacted]"))
    assert (await run.remember("the key is s3cret")).text == "the key is [redacted]"
