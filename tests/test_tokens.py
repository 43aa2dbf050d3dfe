import random
from pathlib import Path

import orjson
import pytest

from orchestrator.models.tokens import NOTHING, Counts, Meter, count, estimate_tokens, portion, together

TEXTS = orjson.loads((Path(__file__).parent / "data" / "token_counts.json").read_bytes())["texts"]
"""Texts of four kinds, and what five tokenizers count in them."""
TOKENIZERS = sorted(TEXTS[0]["tokens"])
KINDS = ("chinese", "english", "code", "json")


def of_kind(kind: str) -> list[tuple[str, dict[str, int]]]:
    return [(entry["text"], entry["tokens"]) for entry in TEXTS if kind in (entry["kind"], "all")]


def after_ten_calls(texts: list[tuple[str, dict[str, int]]], tokenizer: str) -> float:
    """Let a conversation grow by a text a call, each reported; return how wrong the estimate of the eleventh is."""
    meter, counts, tokens = Meter(), NOTHING, 0
    for number, (text, counted) in enumerate(texts[:11]):
        counts, tokens = together(counts, count(text)), tokens + counted[tokenizer]
        if number < 10:
            meter.learn(counts, tokens)
    return abs(meter.tokens(counts) / tokens - 1)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_after_ten_calls_an_estimate_is_off_by_five_percent_at_most(kind: str, tokenizer: str) -> None:
    texts = of_kind(kind)
    for seed in range(5):
        assert after_ten_calls(random.Random(seed).sample(texts, 11), tokenizer) <= 0.05


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_it_is_as_good_in_a_conversation_that_mixes_all_of_them(tokenizer: str) -> None:
    wrong = [after_ten_calls(random.Random(seed).sample(of_kind("all"), 11), tokenizer) for seed in range(20)]
    assert sorted(wrong)[15] <= 0.05
    assert max(wrong) <= 0.1


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(("kind", "most"), [("chinese", 0.6), ("english", 0.06), ("code", 0.06), ("json", 0.1)])
def test_the_first_estimate_errs_on_the_safe_side_where_tokenizers_differ(
    kind: str, most: float, tokenizer: str
) -> None:
    texts = of_kind(kind)
    ratio = sum(estimate_tokens(t) for t, _ in texts) / sum(counted[tokenizer] for _, counted in texts)
    assert 1 - min(most, 0.25) <= ratio <= 1 + most


def test_chinese_teaches_nothing_wrong_about_english() -> None:
    meter, (chinese, counted), english = Meter(), of_kind("chinese")[0], of_kind("english")[0][0]
    before = meter.tokens(count(english))
    for _ in range(10):
        meter.learn(count(chinese), counted["qwen2.5"])
    assert meter.tokens(count(chinese)) == pytest.approx(counted["qwen2.5"], rel=0.02)
    assert meter.tokens(count(english)) == pytest.approx(before, rel=0.05)


def test_a_report_that_cannot_be_right_does_little_harm() -> None:
    meter, counts = Meter(), count(of_kind("english")[0][0])
    usual = meter.tokens(counts)
    for reported in (100 * usual, 1):
        meter.learn(counts, reported)
    assert 0.6 * usual < meter.tokens(counts) < 1.4 * usual
    for _ in range(100):
        meter.learn(counts, 1)
    assert meter.tokens(counts) >= usual // 3


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", (0, 0, 0, 0, 0, 0, 0)),
        ("Hello, wide world!", (3, 14, 0, 2, 0, 0, 0)),
        ("a1b22\n", (2, 2, 3, 0, 1, 0, 0)),
        ("readFile IDs", (3, 11, 0, 0, 0, 0, 0)),
        ("统计，a", (1, 1, 0, 0, 0, 3, 0)),
        ("é—😀", (0, 0, 0, 0, 0, 0, 9)),
        ("\ud800", (0, 0, 0, 0, 0, 1, 0)),
    ],
    ids=["nothing", "words", "digits", "camelCase", "Chinese", "others", "surrogate"],
)
def test_what_a_text_is_made_of(text: str, counts: Counts) -> None:
    assert count(text)[:7] == counts


def test_chinese_weighs_more_than_its_characters_over_four() -> None:
    assert 700 <= estimate_tokens("汉字" * 500) <= 1200
    assert 390 <= estimate_tokens("word " * 400) <= 500


@pytest.mark.parametrize("text", ["word " * 400, "汉字" * 500, "x"])
def test_a_portion_of_a_text_weighs_what_was_asked_for(text: str) -> None:
    assert estimate_tokens(text[: portion(text, 100)]) <= 110
    assert portion(text, 10_000) == len(text)
    assert portion(text, 0) == 1
