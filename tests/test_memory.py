from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import MemoryStoreError, ModelError, ToolError
from orchestrator.failure import Failure, FailureKind
from orchestrator.memory import SHORT_TERM, Memory, Owner, Recollection
from orchestrator.memory.sqlite import _READ_AT_MOST, SqliteMemory, insert
from orchestrator.models.embedding import OpenAIEmbedder
from orchestrator.testing import ScriptedServer

MIRA, TOM, MORNING = Owner(user="mira"), Owner(user="tom"), Owner(session="morning")


class Clock:
    """Stands still until it is moved."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Meanings:
    """Embeds a text as how often it speaks of boats and of cars, whatever they are called."""

    model = "meanings"

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


async def test_what_others_said_hides_nothing_of_a_user(store: SqliteMemory) -> None:
    await store.all()  # makes the tables
    with closing(sqlite3.connect(store.path)) as db, db:
        for number in range(_READ_AT_MOST + 1):
            insert(db, Memory(text=f"wants tables, says {number}", owner=Owner(user=f"u{number}")))
        insert(db, Memory(text="sells quarterly zebras", owner=TOM))
    await add(store, "I like tables with borders.")
    assert await found(store, "Make tables of the quarterly zebras") == ["I like tables with borders."]


@pytest.mark.parametrize(
    "text", ["ο λόγος της πόλεως", "𠮷野家で食べた", "İstanbul'da bir gün", "ﬁnance ① ²"], ids=ascii
)
async def test_each_script_is_found_by_its_own_words(store: SqliteMemory, text: str) -> None:
    await add(store, text)
    for word in text.split():
        assert await found(store, word) == [text]


async def test_what_belongs_to_a_session_is_gone_after_a_day(store: SqliteMemory, clock: Clock) -> None:
    await add(store, "The code is 5555.", owner=MORNING, expires=clock.now + SHORT_TERM)
    clock.now += SHORT_TERM - 1
    assert await found(store, "code", MORNING) == ["The code is 5555."]
    clock.now += 2
    assert await found(store, "code", MORNING) == []
    assert await store.all() == []
    await add(store, "something else")
    assert len(await store.all()) == 1


async def test_what_says_the_same_is_kept_once(store: SqliteMemory) -> None:
    [first] = await add(store, "Ana wants tables in her reports", at=1.0)
    [second] = await add(store, "Ana wants tables in her reports.", at=2.0)
    assert second.id != first.id
    assert [(m.text[-1], m.at) for m in await store.all(MIRA)] == [(".", 2.0)]
    await add(store, "Ana wants tables in her reports.", owner=TOM)
    assert len(await store.all()) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the price of the lamp in the red shop is 30 euros", "the price of the lamp in the red shop is 31 euros"),
        ("30 pallets go from depot 5 to depot 7", "30 pallets go from depot 7 to depot 5"),
        ("Ana owes Tom money", "Tom owes Ana money"),
        ("the lamp costs 5 $", "the lamp costs 5 €"),
        ("张三欠李四钱", "李四欠张三钱"),
    ],
)
async def test_what_says_something_else_is_another_fact(store: SqliteMemory, one: str, other: str) -> None:
    await add(store, one, other)
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
    with pytest.raises(MemoryStoreError, match="too large"):
        await store.forget([2**70])


async def test_the_file_holds_nothing_of_what_is_forgotten(store: SqliteMemory) -> None:
    await add(store, *(f"An ordinary fact, number {n}." for n in range(20)))
    await add(store, "My code is Zanzibarquokka, 鸳鸯蝴蝶.")
    (secret,) = [memory for memory in await store.all() if "Zanzibar" in memory.text]
    held = [b"zanzibarquokka", "鸳鸯".encode()]
    assert all(word in store.path.read_bytes().lower() for word in held)
    assert await store.forget([secret.id]) == 1
    assert not any(word in store.path.read_bytes().lower() for word in held)


async def test_an_owner_that_no_file_can_hold_is_an_error_of_the_store(store: SqliteMemory) -> None:
    with pytest.raises(MemoryStoreError, match="surrogates"):
        await store.add(Memory(text="a fact", owner=Owner(user="\ud800")))


async def test_it_opens_again_and_two_at_a_time_may_write(tmp_path: Path) -> None:
    one, other = SqliteMemory(tmp_path / "m.db"), SqliteMemory(tmp_path / "m.db")
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task((one, other)[number % 2].add(Memory(text=f"lamp number {number}", owner=MIRA)))
    assert len(await one.all(MIRA)) == 20


async def test_the_first_use_waits_for_whoever_writes_at_that_moment(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "m.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.1, other.rollback)
        await add(SqliteMemory(tmp_path / "m.db"), "lamp 1")


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
    for asked in (["Oslo ship", "The train to Oslo leaves at noon."], ["Oslo ship"]):  # once, then it is known
        assert len(await found(store, "Oslo ship")) == 3
        assert meanings.asked[-1] == asked
    meanings.model = "another"  # the vectors that there are say nothing beside its own
    await found(store, "Oslo ship")
    assert len(meanings.asked[-1]) == 4


WRONG = {
    "fewer": '{"data": [{"index": 0, "embedding": [1.0]}]}',
    "not numbered": '{"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}',
    "base64": '{"data": [{"index": 0, "embedding": "AACAPw=="}, {"index": 1, "embedding": "AACAPw=="}]}',
    "nan": '{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [NaN]}]}',
    "none": '{"data": null}',
    "html": "<html>Welcome</html>",
    "empty": "",
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_wrong_embeddings_leave_the_ranking_to_the_words(tmp_path: Path, answer: str) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        body = answer.encode()
        kind = b"Content-Type: application/json\r\nConnection: close\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        embedder = OpenAIEmbedder("e", base_url=f"http://127.0.0.1:{port}/v1")
        store = SqliteMemory(tmp_path / "m.db", embedder=embedder)
        await add(store, "The ferry to Oslo leaves at nine.")
        assert await found(store, "the ferry") == ["The ferry to Oslo leaves at nine."]
        with pytest.raises(ModelError):
            await embedder.embed(["one", "two"])
    assert len(asked) == 2


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


async def test_a_profile_leaves_room_for_what_was_asked(store: SqliteMemory) -> None:
    run = Recollection(store, MIRA, "r1")
    await run.remember("Answers in German, as tables.", kind="profile")
    await run.remember("lamp 3 is in room 3")
    assert [memory.text for memory in await run.recall("lamp", 1)] == ["lamp 3 is in room 3"]


async def test_a_long_text_is_no_memory_and_one_that_is_there_is_told_in_part(store: SqliteMemory) -> None:
    run = Recollection(store, MIRA, "r1")
    with pytest.raises(ToolError, match="1000 at most"):
        await run.remember("lamp " * 1000)
    await add(store, "lamp " * 200_000)
    [told] = await run.recall("lamp")
    assert len(told.text) < 1100


async def test_a_text_that_no_file_can_hold_is_mended(store: SqliteMemory) -> None:
    assert (await Recollection(store, MIRA, "r1").remember("lamp \ud800 \x00 3")).text == "lamp ? \x00 3"
    assert await found(store, "\ud800 lamp") == ["lamp ? \x00 3"]


async def test_what_failed_is_remembered_for_a_day(store: SqliteMemory) -> None:
    kept = await Recollection(store, MIRA, "r1").remember("The tool http_get did not work: no route", kind="failure")
    assert kept.owner == MIRA
    assert kept.expires == pytest.approx(kept.at + SHORT_TERM, abs=5)


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


async def test_memories_are_not_sent_on_to_where_a_server_for_embeddings_points() -> None:
    async with ScriptedServer([]) as other:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            there = f"Location: {other.base_url}/embeddings\r\n".encode()
            writer.write(b"HTTP/1.1 307 Moved\r\nConnection: close\r\nContent-Length: 0\r\n" + there + b"\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            embedder = OpenAIEmbedder("e", base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
            with pytest.raises(ModelError, match="307"):
                await embedder.embed(["a secret"])
        assert other.connections_made == 0
