"""Vectors of texts, from any server that speaks the OpenAI protocol."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel, FiniteFloat, ValidationError

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.models.environment import withheld_headers
from orchestrator.models.httpclient import open_http_client

_ONCE: dict[str, Any] = {"timeout": 10.0, "max_retries": 0}
"""Seconds, and no more tries: whoever asks has another way to rank."""


class _Item(BaseModel):
    index: int
    embedding: list[FiniteFloat]


class _Answer(BaseModel):
    """What counts of a server's answer; servers say more, and not all of them what they should."""

    data: list[_Item]


class Embedder(Protocol):
    """Turns texts into vectors, whose angles tell how close their meanings are."""

    model: str
    """Its name: vectors of another model say nothing beside its own."""

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        """Return a vector for each text.

        Raises:
            ModelError: There is none.
        """


class OpenAIEmbedder:
    """A model for embeddings behind a server that speaks the OpenAI protocol.

    Args:
        model: Its name, as the server knows it.
        base_url: Root of the API; None: OpenAI's own.
        api_key: Its key.
    """

    def __init__(self, model: str, *, base_url: str | None = None, api_key: str | None = None) -> None:
        self.model, self._base_url, self._key = model, base_url, api_key

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        """Return a vector for each text."""
        from openai import AsyncOpenAI, OpenAIError

        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        key = self._key or "none"
        headers = withheld_headers(self._base_url, key)
        try:
            async with AsyncOpenAI(
                base_url=self._base_url,
                api_key=key,
                default_headers=headers,
                http_client=open_http_client(),
                **_ONCE,
            ) as client:
                answer = await client.post("/embeddings", body=body, cast_to=str)
            items = sorted(_Answer.model_validate_json(answer).data, key=lambda item: item.index)
        except OpenAIError as error:
            raise ModelError(Failure(FailureKind.connection, f"no embeddings from {self.model}: {error}")) from None
        except ValidationError as error:
            raise self._wrong(str(error.errors(include_url=False, include_input=False)[0]["msg"])) from None
        if [item.index for item in items] != list(range(len(texts))):
            raise self._wrong(f"{len(items)} vectors for {len(texts)} texts")
        return [array("f", item.embedding) for item in items]

    def _wrong(self, what: str) -> ModelError:
        return ModelError(Failure(FailureKind.bad_model_output, f"wrong embeddings from {self.model}: {what}"))
