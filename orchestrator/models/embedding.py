"""Vectors of texts, from any server that speaks the OpenAI protocol."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind

_TIMEOUT = 10.0
"""Seconds; whoever asks has another way to rank."""


class Embedder(Protocol):
    """Turns texts into vectors, whose angles tell how close their meanings are."""

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

        try:
            async with AsyncOpenAI(base_url=self._base_url, api_key=self._key or "none", timeout=_TIMEOUT) as client:
                answer = await client.embeddings.create(model=self.model, input=list(texts), encoding_format="float")
        except OpenAIError as error:
            raise ModelError(Failure(FailureKind.connection, f"no embeddings from {self.model}: {error}")) from None
        vectors = [array("f", item.embedding) for item in sorted(answer.data, key=lambda item: item.index)]
        if len(vectors) != len(texts):
            told = f"{self.model} gave {len(vectors)} embeddings for {len(texts)} texts"
            raise ModelError(Failure(FailureKind.bad_model_output, told))
        return vectors
