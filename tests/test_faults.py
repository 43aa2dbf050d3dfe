import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.failure import FailureKind
from orchestrator.models.faults import classify

K = FailureKind


def of(status: int, error: Any, **headers: str) -> FailureKind:
    body = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    return classify(status, headers, body).kind


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": text, **fields}}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (
            400,
            message("the request exceeds the available context size, try increasing it", n_ctx=4096),
            K.context_overflow,
        ),
        (500, message("This model's maximum context length is 8192 tokens."), K.context_overflow),
        (400, message("litellm.ContextWindowExceededError: too long", code="400"), K.context_overflow),
        (413, "<html>Request Entity Too Large</html>", K.context_overflow),
        (400, message("max_tokens is too large: 100000"), K.invalid_request),
        (429, message("You exceeded your current quota, check your plan and billing details."), K.quota),
        (429, message("Rate limit reached: 30 requests per day (RPD)"), K.quota),
        (
            429,
            message("Quota exceeded: 15 requests per minute. Add a payment method: /account/billing"),
            K.rate_limited,
        ),
        (429, message("Rate limit reached on tokens per min (TPM). Please try again in 6s."), K.rate_limited),
        (403, message("账户余额不足，请充值"), K.quota),
        (402, message("Insufficient Balance"), K.quota),
        (400, message("请求过于频繁，请稍后再试"), K.rate_limited),
        (400, message("并发超过限制，请降低请求频率"), K.rate_limited),
        (400, message("服务繁忙，请稍后重试"), K.overloaded),
        (400, message("API Key 无效"), K.auth),
        (400, message("模型 glm-9 不存在，请检查模型代码"), K.auth),
        (400, message("输入内容包含敏感词"), K.content_filter),
        (401, message("no"), K.auth),
        (403, "<html>Forbidden</html>", K.auth),
        (404, message("The model `gpt-x` does not exist or you do not have access to it."), K.auth),
        (404, {"detail": "Not Found"}, K.not_json),
        (404, "404 page not found", K.not_json),
        (405, "<html>Method Not Allowed</html>", K.not_json),
        (408, message("slow"), K.timeout),
        (422, {"detail": [{"loc": ["body", "tools"], "msg": "field required"}]}, K.invalid_request),
        (400, {"object": "error", "message": "bad temperature", "code": 400}, K.invalid_request),
        (400, [message("Unknown name 'x'", code=400)], K.invalid_request),
        (400, {"error": "model 'llama9' not found, try pulling it first"}, K.auth),
        (
            400,
            message("Provider returned error", metadata={"raw": "prompt is too long: 9 > 8 tokens"}),
            K.context_overflow,
        ),
        (400, message("The response was filtered", code="content_filter"), K.content_filter),
        (400, message("Content Exists Risk"), K.content_filter),
        (500, message("Failed to parse tool call arguments as JSON"), K.bad_model_output),
        (503, message("Loading model"), K.overloaded),
        (529, message("Overloaded", type="overloaded_error"), K.overloaded),
        (502, "<html>Bad Gateway</html>", K.overloaded),
        (500, "", K.overloaded),
        (200, message("upstream is down", code=None), K.overloaded),
        (200, message("slow down", code=429), K.rate_limited),
        (200, message("slow down", code="429"), K.rate_limited),
        (400, "Bad Request: no such temperature", K.invalid_request),
        (431, "Request Header Fields Too Large", K.invalid_request),
        (404, "Not Found", K.not_json),
        (429, message("当日调用量已超出限制"), K.quota),
        (400, message("输入超出最大长度限制", code="1261"), K.context_overflow),
        (200, {"message": {"role": "assistant", "content": "insufficient quota"}}, K.overloaded),
        (200, "welcome", K.not_json),
        (200, "", K.truncated_stream),
        (200, '{"choices": [{"mess', K.truncated_stream),
        (200, {"base_resp": {"status_msg": "x"}}, K.overloaded),
    ],
)
def test_status_code_type_and_text_decide_together(status: int, error: Any, kind: FailureKind) -> None:
    assert of(status, error) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "60"}, 60.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"Retry-After-Ms": "40", "Retry-After": "60"}, 0.04),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:07 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:07 -0000", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:00 GMT", "date": "Mon, 30 Nov 2026 12:00:07 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("body", ["{}", "<html>Service Unavailable</html>"])
def test_the_wait_that_a_server_asks_for_is_read_in_every_form(
    headers: dict[str, str], seconds: float | None, body: str
) -> None:
    failure = classify(503, headers, body)
    assert failure.retry_after == seconds
    assert ("asks to wait" in failure.message) is (seconds is not None)


def test_a_date_counts_from_now_when_the_server_does_not_tell_its_own() -> None:
    in_a_day = format_datetime(datetime.now(UTC) + timedelta(days=1))
    assert classify(503, {"retry-after": in_a_day}, "{}").retry_after == pytest.approx(86_400, abs=60)


@given(st.text())
def test_any_wait_is_read_or_left_out(text: str) -> None:
    assert (classify(503, {"retry-after": text}, "{}").retry_after or 0) >= 0


def test_a_page_long_message_is_told_in_short() -> None:
    assert len(classify(500, {}, json.dumps(message("Input should be … " * 900))).message) < 400


@pytest.mark.parametrize(
    "asked",
    ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2020 00:00:00 +99999999999", "nan", "inf", "soon"],
)
def test_a_wait_that_nobody_can_read_is_none(asked: str) -> None:
    assert classify(429, {"retry-after": asked}, "{}").retry_after is None


def test_a_code_that_is_no_status_is_no_status() -> None:
    assert of(200, message("gone", code="9" * 5000)) is K.overloaded


@given(st.sampled_from([200, 204, 302, 400, 404, 418, 429, 500]), st.text())
def test_any_answer_gets_a_kind_and_words(status: int, body: str) -> None:
    assert classify(status, {}, body).message


@settings(max_examples=50)
@given(
    st.sampled_from([200, 400, 500]),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["error", "message", "code", "type", "metadata", "raw", "detail"]), inner),
        ),
        max_leaves=8,
    ),
)
def test_any_json_gets_a_kind_and_words(status: int, body: Any) -> None:
    assert classify(status, {}, json.dumps(body)).message


def test_a_long_page_is_looked_through_once() -> None:
    """It took minutes, in which no other run went on."""
    assert of(502, "<title>" * 200_000) is K.overloaded
    assert "Bad Gateway" in classify(502, {}, "<html><title>\n502 Bad Gateway</title>").message
