"""What texts weigh in tokens, and what tokens cost. Pure."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field

_BYTES_PER_TOKEN = 4
_MILLION = Decimal(1_000_000)


def estimate_tokens(text: str | bytes) -> int:
    """Estimate the tokens of a text in any script.

    A quarter of its UTF-8 bytes: that is 4 characters a token for English, 2 for Cyrillic, 1.3 for Chinese and
    Japanese, 1 for emoji, close to what tokenizers do, and as fast as encoding the text.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return -(-len(data) // _BYTES_PER_TOKEN)


class Price(BaseModel):
    """What a model costs, per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input: Decimal = Field(ge=0)
    cached: Decimal | None = Field(None, ge=0)
    """Of prompt tokens that the server had in its cache; None: as `input`."""
    output: Decimal = Field(ge=0)
    currency: str = "USD"

    def cost(self, prompt: int, cached: int, completion: int) -> Decimal:
        """Return the cost of one call.

        Args:
            prompt: Tokens read, the cached ones included.
            cached: Tokens of the prompt that came from the server's cache.
            completion: Tokens written.
        """
        from_cache = self.input if self.cached is None else self.cached
        return ((prompt - cached) * self.input + cached * from_cache + completion * self.output) / _MILLION
