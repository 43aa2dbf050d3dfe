from typing import Any

import pytest

from orchestrator import Orchestrator
from orchestrator.connections import Connections
from orchestrator.errors import ConfigError
from orchestrator.models import Model
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.replay import Header, Recording, ReplayModel
from orchestrator.settings import ModelSettings, Settings

A, B = "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"


def described(base_url: str = A, model: str = "m", **more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"base_url": base_url, "model": model, **more})


def endpoint(connections: Connections, key: str) -> Endpoint:
    model = connections.model(key)[0]
    assert isinstance(model, Endpoint)
    return model


def test_a_model_is_made_once_and_handled_as_its_settings_say() -> None:
    connections = Connections(Settings(models={"a": described(attempts=5, when_open="fail", profile="small")}), {})
    model, profile = connections.model("a")
    assert connections.model("a")[0] is model and profile.example
    assert endpoint(connections, "a").attempts == 5 and endpoint(connections, "a").when_open == "fail"


def test_keys_of_one_server_and_model_share_its_health_and_the_smallest_limits_count() -> None:
    models = {
        "a": described(concurrency=8, rpm=60),
        "creative": described(concurrency=2, tpm=900, params={"temperature": 1}),
        "elsewhere": described(B, rpm=1),
        "other": described(model="n", rpm=2),
    }
    connections = Connections(Settings(models=models), {})
    a, creative = endpoint(connections, "a"), endpoint(connections, "creative")
    assert a is not creative and a.breaker is creative.breaker and a.lanes is creative.lanes
    assert (a.lanes.rpm, a.lanes.tpm) == (60, 900)
    for key in ("elsewhere", "other"):
        assert endpoint(connections, key).breaker is not a.breaker
        assert endpoint(connections, key).lanes is not a.lanes


def test_two_models_may_stand_in_for_each_other() -> None:
    connections = Connections(Settings(models={"a": described(fallback=["b"]), "b": described(B, fallback=["a"])}), {})
    a, b = endpoint(connections, "a"), endpoint(connections, "b")
    assert list(a.fallback) == [b] and list(b.fallback) == [a]


def test_a_program_s_own_model_is_used_as_it_is_and_may_be_a_fallback() -> None:
    own: Model = ReplayModel(Recording(Header(scenario="s", model="own"), {}))
    connections = Connections(Settings(), {"own": own, "a": described(fallback=["own"])})
    assert connections.model("own")[0] is own
    assert [fallback.model for fallback in endpoint(connections, "a").fallback] == [own]


def test_an_unknown_fallback_is_told_with_the_nearest_key() -> None:
    connections = Connections(Settings(models={"cheap": described(B)}), {"a": described(fallback=["cheep"])})
    with pytest.raises(ConfigError, match=r"'cheep'.*'cheap'"):
        connections.model("a")


def test_prices_that_a_program_gives_are_in_one_currency() -> None:
    usd, cny = ({"input": 1, "output": 1, "currency": currency} for currency in ("USD", "CNY"))
    with pytest.raises(ConfigError, match="these are not: default: USD, cheap: CNY"):
        Orchestrator(models={"default": described(price=usd), "cheap": described(price=cny)})
