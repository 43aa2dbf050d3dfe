"""The models of one orchestrator: configured ones behind shared endpoints, and models of a program's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.document import Document
from orchestrator.messages import Json
from orchestrator.models import Model
from orchestrator.models.breaker import Breaker
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.lanes import Lanes
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.presets import way_to_result
from orchestrator.profile import PROFILES, Profile
from orchestrator.settings import ModelSettings, Settings


def read_models(models: Mapping[str, ModelSettings | Model | Mapping[str, Json]]) -> dict[str, ModelSettings | Model]:
    """Return the models that a program gives, those that it only describes read as `ori.yaml` is.

    Raises:
        ConfigError: A description is wrong.
    """
    return {
        key: Document.given(key, said).validate(ModelSettings) if isinstance(said, Mapping) else said
        for key, said in models.items()
    }


class Connections:
    """Makes each model at its first use; all runs share it, and all keys of one server and model share its health.

    Args:
        settings: Of the project.
        given: Models by key that go before those of the settings.
    """

    def __init__(self, settings: Settings, given: Mapping[str, ModelSettings | Model]) -> None:
        self._settings, self._given = settings, given
        self._models: dict[str, Model] = {}
        self._wires: dict[str, OpenAIModel] = {}
        self._shared: dict[tuple[str, str], tuple[Breaker, Lanes]] = {}

    def model(self, key: str) -> tuple[Model, Profile]:
        """Return the model behind a key, and how it is handled.

        Raises:
            ConfigError: There is none, or it lacks something.
        """
        given = self._given.get(key)
        if given is not None and not isinstance(given, ModelSettings):
            return self._models.setdefault(key, given), PROFILES["standard"]
        settings = given or self._settings.model(key)
        model = self._models.get(key) or self._connect(key, settings)
        return model, self._profile(settings, self._wires[key])

    async def aclose(self) -> None:
        """Close the connections of this event loop; they open again at the next use."""
        for model in self._models.values():
            await model.aclose()

    def _connect(self, key: str, settings: ModelSettings) -> Endpoint:
        wire = self._wires[key] = wire_to(settings)
        breaker, lanes = self._health(wire, settings)
        endpoint = Endpoint(
            wire, attempts=settings.attempts, when_open=settings.when_open, breaker=breaker, lanes=lanes
        )
        self._models[key] = endpoint  # before its fallbacks: two models may stand in for each other
        endpoint.fallback = [self._endpoint(other) for other in settings.fallback]
        return endpoint

    def _profile(self, settings: ModelSettings, wire: OpenAIModel) -> Profile:
        """Return how a model is handled, as far as is known by now."""
        profile = PROFILES[settings.profile]
        way = way_to_result(settings.structured, wire.preset, profile.structured, wire.refused)
        sees = settings.vision and "image_url" not in wire.refused
        return replace(profile, structured=way, image_size=settings.image_size if sees else 0)

    def _endpoint(self, key: str) -> Endpoint:
        model, _ = self.model(key)
        return model if isinstance(model, Endpoint) else Endpoint(model)

    def _health(self, wire: OpenAIModel, settings: ModelSettings) -> tuple[Breaker, Lanes]:
        """Return what all keys of this server and model share; where their limits differ, the smallest count."""
        known = {**self._settings.models, **self._given}.values()
        alike = [m for m in known if isinstance(m, ModelSettings) and _place(m) == _place(settings)]
        lanes = Lanes(
            min(m.concurrency for m in alike),
            rpm=min((m.rpm for m in alike if m.rpm), default=0),
            tpm=min((m.tpm for m in alike if m.tpm), default=0),
        )
        return self._shared.setdefault((wire.base_url, wire.name), (Breaker(), lanes))


def _place(settings: ModelSettings) -> tuple[str | None, str]:
    return settings.base_url, settings.model


def wire_to(settings: ModelSettings) -> OpenAIModel:
    """Make the wire to a configured model."""
    return OpenAIModel(
        settings.model,
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        window=settings.window,
        max_output=settings.max_output,
        params=settings.params,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        extra_body=settings.extra_body,
        stream=settings.stream,
        price=settings.price,
        timeout=settings.timeout,
        vision=settings.vision,
        salvage=settings.salvage,
        preset=settings.preset,
    )
