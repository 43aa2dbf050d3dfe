"""Search of the web by Tavily."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SecretStr, field_validator

from orchestrator import ToolContext, ToolError, ToolResult, Toolset, tool
from orchestrator.extras import not_installed
from orchestrator.strict import Strict

if TYPE_CHECKING:
    from tavily import AsyncTavilyClient

KEY = "TAVILY_API_KEY"
SECONDS = 25.0
"""Of one request."""


def _key_of_environment() -> SecretStr | None:
    key = os.environ.get(KEY)
    return SecretStr(key) if key else None


class Settings(Strict):
    """What `ori.yaml` may say under `tools: search:`."""

    api_key: SecretStr | None = Field(default_factory=_key_of_environment)
    base_url: str = "https://api.tavily.com"
    results: int = Field(5, ge=1, le=20)
    """Hits of one search."""

    @field_validator("api_key")
    @classmethod
    def _set(cls, key: SecretStr | None) -> SecretStr | None:
        """Take a variable that is not set for no key."""
        return None if key is None or key.get_secret_value().startswith("${") else key


def _missing(settings: Settings) -> str:
    key = f"no key: set {KEY} in the environment or in .env (Tavily gives one at app.tavily.com)"
    return "; ".join(filter(None, ("" if settings.api_key else key, not_installed("search", "tavily"))))


toolset = Toolset(settings=Settings, missing=_missing)


@tool(effect="read", timeout=SECONDS + 5, untrusted=True)
async def web_search(
    query: str,
    ctx: ToolContext,
    domains: list[str] | None = None,
    since: Literal["day", "week", "month", "year"] | None = None,
) -> ToolResult:
    """Search the web.

    Use it to find pages about something; then read the best ones with search_extract. Ask for one thing at a time, in a
    few words.

    Args:
        query: What to look for, at most 400 characters.
        domains: Look only there, as ["wikipedia.org"].
        since: Only what is not older than this.

    Returns:
        Title, URL and the passage that fits, of each page found.
    """
    options = {"include_domains": domains, "time_range": since, "max_results": ctx.settings.results}
    found = await _ask(ctx, "search", query, **options)
    hits = [{"title": _line(h, "title"), "url": _line(h, "url"), "snippet": _line(h, "content")} for h in found]
    shown = "\n\n".join(f"{n}. {hit['title']}\n{hit['url']}\n{hit['snippet']}" for n, hit in enumerate(hits, 1))
    nothing = f"nothing was found for {query!r}; try other words, or fewer"
    return ToolResult(shown or nothing, value=hits, untrusted=f"a web search for {query!r}")


@tool(effect="read", timeout=SECONDS + 5, untrusted=True, destinations=("url",))
async def search_extract(url: str, ctx: ToolContext) -> ToolResult:
    """Read the text of a page on the web, without menus and advertising.

    Use it to read what a search found. Pages that need JavaScript work, too.

    Args:
        url: As https://example.com/page.

    Returns:
        The text as Markdown.
    """
    ctx.network.check_url(url)
    pages = await _ask(ctx, "extract", url, format="markdown")
    text = next((page["raw_content"] for page in pages if page.get("raw_content")), None)
    if text is None:
        raise ToolError(f"{url} could not be read; try another page")
    return ToolResult(text, value=text, untrusted=url)


async def _ask(ctx: ToolContext, what: str, subject: str, **options: Any) -> list[dict[str, Any]]:
    """Return the results of a request to Tavily, or say what a person or the model can do about it."""
    settings: Settings = ctx.settings
    await ctx.threads.run(import_module, "tavily")  # takes a second, in which other runs go on
    import httpx
    from tavily import errors

    client = await ctx.keep(("tavily", settings), lambda: _client(settings), scope="orchestrator")
    try:
        answer = await getattr(client, what)(subject, timeout=SECONDS, **options)
        return [dict(result) for result in answer["results"]]
    except errors.InvalidAPIKeyError:
        why = f"it refuses the key; a person must put a valid one into {KEY}"
    except errors.UsageLimitExceededError:
        why = "too many requests at a time; wait a while, or ask less"
    except errors.ForbiddenError as error:
        why = f"the plan allows no more: {error}; a person must change it, go on without"
    except errors.BadRequestError as error:
        why = f"the request is wrong: {error}"
    except errors.TimeoutError:
        why = f"no answer within {SECONDS:g} s; try again, or go on without"
    except httpx.HTTPStatusError as error:
        why = f"it answers {error.response.status_code}; try again later, or go on without"
    except httpx.HTTPError as error:
        why = f"{settings.base_url} cannot be reached ({type(error).__name__}); go on without"
    except (AttributeError, KeyError, TypeError, ValueError):  # Tavily's client takes the form for granted
        why = "its answer cannot be read; go on without"
    raise ToolError(f"no {what} by Tavily: {why}")


def _client(settings: Settings) -> AsyncTavilyClient:
    from tavily import AsyncTavilyClient

    assert settings.api_key is not None  # else the tools are missing
    return AsyncTavilyClient(settings.api_key.get_secret_value(), api_base_url=settings.base_url)


def _line(hit: dict[str, Any], name: str) -> str:
    return " ".join(str(hit.get(name) or "").split())
