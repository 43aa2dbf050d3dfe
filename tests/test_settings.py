from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.settings import ProjectLimits, Settings, load_settings


def settings(tmp_path: Path, text: str, **environment: str) -> Settings:
    (tmp_path / "ori.yaml").write_text(text, "utf-8")
    return load_settings(tmp_path, environment)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text)
    return str(caught.value).replace(str(tmp_path / "ori.yaml"), "ori.yaml")


LOCAL = 'models: {default: {model: qwen, base_url: "http://127.0.0.1:8080/v1"}}\n'
KEYED = """\
models:
  default:
    model: gpt-x
    api_key: "${MY_KEY}"
  cheap: {model: small, base_url: "http://localhost/v1", profile: small}
"""


def test_without_a_file_the_environment_describes_the_default_model(tmp_path: Path) -> None:
    found = load_settings(tmp_path, {"OPENAI_API_KEY": "sk-12345678", "OPENAI_MODEL": "gpt-x"})
    model = found.model("default")
    assert (model.model, model.base_url) == ("gpt-x", None)
    assert model.api_key is not None
    assert model.api_key.get_secret_value() == "sk-12345678"


def test_a_local_server_needs_neither_key_nor_model_name(tmp_path: Path) -> None:
    found = load_settings(tmp_path, {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"})
    assert found.configured
    assert found.model("default").base_url == "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize("environment", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_MODEL": "gpt-x"}])
def test_without_a_model_the_error_tells_the_ways_to_get_one(tmp_path: Path, environment: dict[str, str]) -> None:
    found = load_settings(None, environment)
    assert not found.configured
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY and OPENAI_MODEL.*local server.*ori.yaml"):
        found.model("default")


def test_a_file_without_a_default_model_still_takes_it_from_the_environment(tmp_path: Path) -> None:
    found = settings(tmp_path, "limits: {tokens: 10}\n", OPENAI_BASE_URL="http://localhost/v1")
    assert found.configured
    assert found.limits == ProjectLimits(tokens=10)


def test_prices_in_two_currencies_are_refused_as_costs_are_summed(tmp_path: Path) -> None:
    def priced(currency: str, amount: int = 1) -> str:
        return f"{{model: m, price: {{input: {amount}, output: {amount}, currency: {currency}}}}}"

    said = refused(tmp_path, f"models:\n  default: {priced('USD')}\n  cheap: {priced('CNY')}\n")
    assert "ori.yaml" in said and "in one currency; these are not: default: USD, cheap: CNY" in said
    assert settings(tmp_path, f"models:\n  default: {priced('usd')}\n  free: {priced('CNY', 0)}\n  b: {priced('USD')}")


def test_keys_whose_values_are_all_commented_out_count_as_left_out(tmp_path: Path) -> None:
    text = "models:\n#  default: {}\nlimits:\ntools:\nmcp:\nnetwork:\nmax_runs:\n"
    found = settings(tmp_path, text, OPENAI_BASE_URL="http://localhost/v1")
    assert found.configured
    assert (found.limits, found.tools, found.mcp, found.max_runs) == (ProjectLimits(), {}, {}, 4)


def test_a_missing_variable_matters_only_when_its_model_is_used(tmp_path: Path) -> None:
    found = settings(tmp_path, KEYED)
    assert not found.configured
    assert found.model("cheap").profile == "small"
    with pytest.raises(ConfigError, match=r"ori.yaml:4: models.default.api_key needs MY_KEY, which is not set"):
        found.model("default")


def test_a_key_from_the_environment_is_secret_and_never_shown(tmp_path: Path) -> None:
    found = settings(tmp_path, KEYED, MY_KEY="sk-secret-value")
    assert found.configured
    assert found.secrets() == ["sk-secret-value"]
    assert "sk-secret-value" not in repr(found) + found.model_dump_json()
    assert not found.warnings


def test_a_key_in_the_file_works_and_is_warned_about(tmp_path: Path) -> None:
    found = settings(tmp_path, "models:\n  default:\n    model: m\n    api_key: sk-12345678\n")
    assert found.configured
    assert found.secrets() == ["sk-12345678"]
    [warning] = found.warnings
    assert "ori.yaml:4: a key stands in the file" in str(warning)
    assert "sk-12345678" not in str(warning)


def test_secrets_are_header_values_tokens_of_tools_and_what_follows_bearer(tmp_path: Path) -> None:
    text = LOCAL.replace("}}", ", headers: {Authorization: Bearer abcdefgh-1}}}") + (
        'mcp: {github: {env: {T: "${GITHUB_TOKEN}", HOME: "${HOME_DIR}"}, command: x}}\n'
    )
    found = settings(tmp_path, text, GITHUB_TOKEN="ghp_12345678", HOME_DIR="/home/somebody")
    assert set(found.secrets()) == {"Bearer abcdefgh-1", "abcdefgh-1", "ghp_12345678"}
    assert found.mcp["github"].env["HOME"].get_secret_value() == "/home/somebody"


def test_a_dummy_key_is_no_secret_because_redacting_it_would_spoil_texts(tmp_path: Path) -> None:
    found = settings(tmp_path, LOCAL.replace("}}", ", api_key: none}}"))
    assert (found.secrets(), found.warnings) == ([], ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {}\n", "ori.yaml:1: unknown key 'model'; did you mean 'models'?"),
        (
            LOCAL.replace("model:", "modell:"),
            "ori.yaml:1: unknown key 'modell' in models.default; did you mean 'model'?",
        ),
        (LOCAL + "limits:\n  max_turn: 3\n", "ori.yaml:3: unknown key 'max_turn' in limits; did you mean 'max_turns'?"),
        (LOCAL + "limits: {max_turns: 0}\n", "ori.yaml:2: limits.max_turns is 0: input should be greater than"),
        (LOCAL.replace("}}", ", fallback: [chaep]}, cheap: {model: m}}"), "ori.yaml:1: unknown model 'chaep'"),
        (LOCAL.replace("}}", ", profile: smal}}"), "models.default.profile is 'smal'; did you mean 'small'?"),
        ("models: 3\n", "ori.yaml:1: models is 3: input should be a mapping of keys to values"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_an_unknown_model_key_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model 'cheep' in ori\.yaml; did you mean 'cheap'"):
        settings(tmp_path, KEYED).model("cheep")


def test_the_example_of_the_documentation_is_read_whole(tmp_path: Path) -> None:
    text = """\
models:
  default: {base_url: "http://localhost/v1", model: m, api_key: "${KEY}", window: 128000, max_output: 8192,
            vision: false, stream: auto, price: {input: 1, cached: 0.1, output: 4, currency: USD},
            params: {temperature: 0.3}, headers: {}, extra_body: {}, concurrency: 8, rpm: 0, tpm: 0,
            timeout: {connect: 5, read: 60, first_byte: 300}, attempts: 3, when_open: wait, fallback: [cheap]}
  cheap: {model: s, base_url: "http://localhost/v1"}
limits: {}
max_runs: 4
tools: {shell: {enabled: false}}
network: {allow: []}
mcp: {}
journal: sqlite
"""
    found = settings(tmp_path, text, KEY="sk-12345678")
    assert found.model("default").fallback == ("cheap",)
    assert found.tools == {"shell": {"enabled": False}}
    price = found.model("default").price
    assert price is not None
    assert str(price.cached) == "0.1"
