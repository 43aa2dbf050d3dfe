"""The words are those of real servers, from public reports."""

import json
from typing import Any

import pytest

from orchestrator.models.refusals import longest_answer, refused, window

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "x"}, "b": {"oneOf": [{"type": "string"}]}, "c": {"enum": [1]}},
    "additionalProperties": False,
}
MESSAGES = [
    {"role": "system", "content": "You answer."},
    {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    {"role": "assistant", "content": "so"},
    {"role": "user", "content": "and?"},
]


def body(**changes: Any) -> dict[str, Any]:
    """A request that has everything that can be refused."""
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": SCHEMA}}
    format = {"type": "json_schema", "json_schema": {"name": "result", "schema": SCHEMA, "strict": True}}
    whole = {
        "model": "m",
        "temperature": 0.3,
        "max_tokens": 9,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [tool],
        "parallel_tool_calls": False,
        "messages": json.loads(json.dumps(MESSAGES)),
        "tool_choice": "required",
        "response_format": format,
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def error(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, **more}})


def extra(*place: Any) -> str:
    detail = [{"type": "extra_forbidden", "loc": ["body", *place], "msg": "Extra inputs are not permitted", "input": 1}]
    return json.dumps({"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None})


SAID = [
    # OpenAI, Azure
    (
        error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        {"max_tokens"},
    ),
    (
        error(
            "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is "
            "supported.",
            param="temperature",
            code="unsupported_value",
        ),
        {"temperature"},
    ),
    (error("Unsupported value: 'messages[0].role' does not support 'system' with this model."), {"system"}),
    (error("Unrecognized request argument supplied: stream_options"), {"stream_options"}),
    (error("Invalid content type. image_url is only supported by certain models."), {"image_url"}),
    (
        error("Invalid schema for function 'f': In context=('properties', 'b'), 'oneOf' is not permitted."),
        {"schema.oneOf"},
    ),
    (
        error("Invalid schema for response_format 'result': In context=(), 'required' is required to be supplied."),
        {"strict"},
    ),
    (
        error("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
        {"response_format=json_schema"},
    ),
    # DeepSeek
    (error("This response_format type is unavailable now"), {"response_format=json_schema"}),
    (error("messages[1]: unknown variant `image_url`, expected `text` at line 1 column 802043"), {"image_url"}),
    (error("The `reasoning_content` in the thinking mode must be passed back to the API."), {"no reasoning_content"}),
    (error("Missing `reasoning_content` field in the assistant message at message index 4."), {"no reasoning_content"}),
    # Moonshot
    (
        error("thinking is enabled but reasoning_content is missing in assistant tool call message at index 4"),
        {"no reasoning_content"},
    ),
    (error("invalid temperature: only 1 is allowed for this model"), {"temperature"}),
    (
        error("tools.function.parameters is not a valid moonshot flavored json schema, details: <bad>"),
        {"schema.all but basic"},
    ),
    # DashScope
    (
        error(
            "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to "
            "required or object in thinking mode"
        ),
        {"tool_choice=required"},
    ),
    # Mistral
    (extra("stream_options", "include_usage"), {"stream_options"}),
    (extra("seed"), {"seed"}),
    (extra("messages", 2, "assistant", "reasoning_content"), {"assistant.reasoning_content"}),
    (
        error("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", code="3280"),
        {"long ids"},
    ),
    (error("Unexpected role 'user' after role 'tool'"), {"user after tool"}),
    # Groq
    (
        error("'messages.2' : for 'role:assistant' ... [('messages.2' : property 'reasoning_content' is unsupported)]"),
        {"assistant.reasoning_content"},
    ),
    # Gemini
    (
        json.dumps(
            [
                {
                    "error": {
                        "code": 400,
                        "message": 'Invalid JSON payload received. Unknown name "parallel_tool_calls": '
                        "Cannot find field.",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ]
        ),
        {"parallel_tool_calls"},
    ),
    (
        json.dumps(
            [
                {
                    "error": {
                        "code": 400,
                        "message": 'Invalid JSON payload received. Unknown name "additionalProperties" at '
                        "'tools[0].function_declarations[0].parameters': Cannot find field.\nInvalid JSON payload "
                        "received. Unknown name \"oneOf\" at 'tools[0]': Cannot find field.",
                    }
                }
            ]
        ),
        {"schema.additionalProperties", "schema.oneOf"},
    ),
    (
        error("Function call is missing a thought_signature in functionCall parts. This is required for tools to work"),
        {"no thought_signature"},
    ),
    # OpenRouter
    (error("No endpoints found that support image input", code=404), {"image_url"}),
    (error("No endpoints found that support the provided 'tool_choice' value.", code=404), {"tool_choice=required"}),
    # vLLM, llama.cpp, Ollama, templates
    ('{"object":"error","message":"System role not supported","type":"BadRequestError","code":400}', {"system"}),
    (
        '{"message":"The provided JSON schema contains features not supported by xgrammar.","code":400}',
        {"response_format=json_schema"},
    ),
    (
        error("JSON schema conversion failed:\nPattern must start with '^' and end with '$'"),
        {"schema.pattern"},
    ),
    (
        '{"error":{"code":400,"message":"Failed to initialize samplers: failed to parse grammar"}}',
        {"schema.all but basic"},
    ),
    (
        '{"error":{"code":500,"message":"image input is not supported - hint: you may need to provide the mmproj"}}',
        {"image_url"},
    ),
    ('{"error":"this model does not support image input"}', {"image_url"}),
    # gateways
    (error("messages: text content blocks must be non-empty"), {"empty content"}),
    (error("tool_choice 当前模型不支持"), {"tool_choice=required"}),
]


@pytest.mark.parametrize(
    ("said", "what"), SAID, ids=lambda value: None if isinstance(value, str) else "+".join(sorted(value))
)
def test_what_is_refused_is_recognised_by_the_words_of_real_servers(said: str, what: set[str]) -> None:
    """Q10."""
    asked = body()
    if what == {"response_format=json_schema"}:
        asked["response_format"]["json_schema"].pop("strict")
    assert refused(said, asked) == what


@pytest.mark.parametrize(
    "said",
    [
        "parameter.enable_thinking must be set to false for non-streaming calls",
        "This model only support stream mode, please enable the stream parameter to access the model.",
    ],
)
def test_a_server_that_only_streams_is_asked_to_stream(said: str) -> None:
    assert refused(error(said), body(stream=None, stream_options=None)) == {"plain"}
    assert "plain" not in refused(error(said), body())


def test_a_server_that_cannot_stream_is_asked_for_whole_answers() -> None:
    assert refused(error("Unsupported value: 'stream' does not support true with this model."), body()) == {"stream"}


@pytest.mark.parametrize(
    "said",
    [
        error("The model `m` does not exist or you do not have access to it."),
        error("Invalid value for 'messages[1].content': string too long"),
        error("registry.ollama.ai/library/gemma does not support tools"),
        error("Provider returned error"),
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        error("We could not parse the JSON body of your request."),
        "Internal Server Error",
        "",
    ],
)
def test_what_cannot_be_left_out_or_is_not_named_changes_nothing(said: str) -> None:
    assert refused(said, body()) == set()


def test_only_what_the_request_had_can_be_refused() -> None:
    bare = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
    for said, what in SAID:
        assert refused(said, bare) <= {"max_tokens"} & what


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ('{"message":"request (6020 tokens) exceeds the available context size (4096 tokens)","n_ctx":4096}', 4096),
        ("This model's maximum context length is 16384 tokens. However, you requested 122946 tokens", 16384),
        ("The decoder prompt (length 163840) is longer than the maximum model length of 131072.", 131072),
        (
            "Input tokens exceed the configured limit of 922000 tokens. Your messages resulted in 1751400 tokens.",
            922000,
        ),
        ("prompt is too long: 210000 tokens > 200,000 maximum", 200_000),
        ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720),
        ("invalid params, context window exceeds limit (2013)", None),
        ("litellm.ContextWindowExceededError: ...", None),
        (f"maximum context length is {'9' * 5000} tokens", 999_999_999_999),
    ],
)
def test_the_window_that_an_overflow_names_is_read(said: str, tokens: int | None) -> None:
    """Q3."""
    assert window(said) == tokens


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ("max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you…", 4096),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
        ("<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 2000]", 2000),
        ("`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than", 8192),
        ("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens", 64000),
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", None),
    ],
)
def test_the_longest_answer_that_a_refusal_names_is_read(said: str, tokens: int | None) -> None:
    assert longest_answer(said) == tokens


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("参数 max_tokens 不支持", "max_tokens"),
        ("API 调用参数有误，max_tokens 参数非法", "max_tokens"),
        ("未知参数max_tokens，请检查", "max_tokens"),
        ("不识别的字段 stream_options", "stream_options"),
        ("stream_options无效", "stream_options"),
        ("参数错误：parallel_tool_calls 不被支持", "parallel_tool_calls"),
        ("tool_choice 参数不合法", "tool_choice=required"),
        ("不支持 system 角色", "system"),
    ],
)
def test_a_refusal_in_chinese_is_understood(said: str, what: str) -> None:
    """Made up, in the manner of Chinese servers."""
    assert refused(error(said), body()) == {what}


@pytest.mark.parametrize(
    "said", ["max_tokens 不能超过 4096", "max_tokens 的值必须小于等于 4096", "max_tokens最大为4096"]
)
def test_so_is_the_longest_answer(said: str) -> None:
    assert longest_answer(error(said)) == 4096


def test_so_is_the_window() -> None:
    assert window(error("输入长度超过模型最大上下文长度 8192")) == 8192
