from __future__ import annotations

import json
import time
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text.redact import Redactor

SECRET = 'p@ss "word"/\\+密码'


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"before {SECRET}after {SECRET}",
        json.dumps({"key": SECRET}),
        json.dumps({"key": SECRET}, ensure_ascii=False),
        json.dumps({"arguments": json.dumps({"key": SECRET})}),
        json.dumps({"arguments": json.dumps({"key": SECRET})}, ensure_ascii=False),
        json.dumps(json.dumps(json.dumps({"key": SECRET}), ensure_ascii=False)),
        f"https://api.example/search?api_key={quote(SECRET, safe='')}&q=1",
        f"https://api.example/search?{quote_plus(SECRET)}",
        f"https://api.example/{quote(SECRET).lower()}",
        b64encode(SECRET.encode()).decode(),
        urlsafe_b64encode(SECRET.encode()).decode(),
        f"Authorization: Basic {b64encode(f'me:{SECRET}'.encode()).decode()}",
        f"Authorization: Bearer {SECRET}",
    ],
)
def test_a_secret_is_taken_out_in_every_form_it_travels_in(text: str) -> None:
    """B53: no secret reaches any output."""
    redacted = Redactor([SECRET]).text(text)
    assert "[redacted]" in redacted
    for trace in (SECRET, "word", "密", "5a+G", quote("密"), "\\u5bc6"):
        assert trace not in redacted


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=6), st.binary(max_size=5), st.binary(max_size=5))
def test_any_secret_within_base64_is_taken_out(secret: str, before: bytes, after: bytes) -> None:
    encoded = b64encode(before + secret.encode() + after).decode()
    redacted = Redactor([secret]).text(encoded)
    assert "[redacted]" in redacted
    assert len(redacted) - len("[redacted]") <= len(encoded) - (len(secret.encode()) * 8 // 6 - 2)


@given(st.lists(st.text(st.characters(exclude_characters="[]"), min_size=6)), st.text())
def test_no_secret_is_left_whatever_it_is(secrets: list[str], text: str) -> None:
    for secret in secrets:
        if secret not in "[redacted]":
            assert secret not in Redactor([secret]).text(text + secret + text)
    Redactor(secrets).text(text)


def test_the_longer_of_two_secrets_goes_first() -> None:
    assert Redactor(["secret", "secret-of-mine"]).text("a secret-of-mine b secret c") == "a [redacted] b [redacted] c"


def test_a_secret_within_a_header_is_taken_out_whole() -> None:
    secret = "abcdefgh1234%rest"
    assert Redactor([secret]).text(f"Bearer {secret}") == "Bearer [redacted]"


@pytest.mark.parametrize("short", ["", "a", "EMPTY"])
def test_a_short_value_is_no_secret(short: str) -> None:
    assert Redactor([short]).text("an EMPTY cell") == "an EMPTY cell"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key=sk-proj-a1B2c3D4e5F6", "key=[redacted]"),
        ("用 sk-a1B2c3D4e5F6g7H8。", "用 [redacted]。"),
        ("key为sk-a1B2c3D4e5F6g7H8", "key为[redacted]"),
        ("?api_key=tvly-dev-0123456789abcdef&q", "?api_key=[redacted]&q"),
        ("'Authorization': 'Bearer eyJhbGciOi.J9.x-_1'", "'Authorization': 'Bearer [redacted]'"),
        ("bearer 0123456789abcdef", "bearer [redacted]"),
    ],
)
def test_common_kinds_of_keys_are_known_by_their_shape(text: str, expected: str) -> None:
    """B54: a key printed by somebody else is taken out before it is stored."""
    assert Redactor().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "risk-averse-12345678901",
        "sk-learn-compatible",
        "Bearer authentication is required",
        "the bearer of 1234567890 shares",
        "disk-usage-2024-01-01",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize("part", ["华东地区 sales of the 3rd quarter; ", "sk-", "Bearer ", "key-number-", "A"])
def test_a_long_text_is_searched_in_no_time(part: str) -> None:
    redactor = Redactor([f"key-number-{i}-{i * 7919:x}" for i in range(10)])
    text = part * (300_000 // len(part))
    begin = time.process_time()
    assert redactor.text(text) == text
    assert time.process_time() - begin < 1
