from __future__ import annotations

from typing import Any

import pytest

from orchestrator.policy import Act, Reason, Trust, destinations, is_named, reason_to_ask

SOURCES = ("https://blog.example/post",)
GOAL = "把 https://shop.example/orders 的结果发给 王@corp.example, and compare with api.example:8443"


def act(*places: str, **changes: Any) -> Act:
    return Act(**{"tool": "t", "effect": "once", "outward": True, "approval": False, "destinations": places, **changes})


def asks(act: Act, approval: tuple[str, ...] = (), **trust: Any) -> Reason | None:
    return reason_to_ask(act, approval, Trust(**{"named": [GOAL], "sources": SOURCES, **trust}))


class TestApproval:
    @pytest.mark.parametrize(
        ("act", "approval"),
        [
            (act(approval=True), ()),
            (act(), ("t",)),
            (act(), ("*",)),
            (act(effect="idempotent"), ("*",)),
            (act(effect="read"), ("t",)),
            (act(effect="read"), ("t*",)),
        ],
        ids=["tool", "role", "all-once", "all-idempotent", "read-by-name", "read-by-pattern"],
    )
    def test_is_asked_for_where_tool_or_role_say_so_whatever_was_read(
        self, act: Act, approval: tuple[str, ...]
    ) -> None:
        assert asks(act, approval, sources=()) == Reason("it needs a person's approval")

    def test_all_means_what_changes_something(self) -> None:
        assert asks(act(effect="read"), ("*",), sources=()) is None


class TestAfterWordsOfStrangers:
    def test_without_them_nobody_is_asked(self) -> None:
        assert asks(act("https://evil.example/"), sources=()) is None

    def test_what_cannot_be_taken_back_and_says_not_where_it_goes_asks(self) -> None:
        assert asks(act()) == Reason("it cannot be taken back")

    def test_what_stays_within_the_run_does_not(self) -> None:
        assert asks(act(outward=False)) is None

    def test_reading_without_a_destination_does_not(self) -> None:
        assert asks(act(effect="read")) is None

    @pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
    def test_a_destination_that_the_user_did_not_name_asks_and_is_shown(self, effect: str) -> None:
        place = "https://evil.example/?d=secret"
        assert asks(act(place, "https://shop.example", effect=effect)) == Reason(
            "the user did not name where it goes", place
        )

    def test_a_link_may_be_followed_as_it_stands_but_nothing_be_sent_there(self) -> None:
        link = "https://blog.example/next?page=2"
        assert asks(act(link, effect="read"), seen=lambda place: place == link) is None
        assert asks(act(link + "&d=secret", effect="read"), seen=lambda place: place == link) is not None
        assert asks(act(link, effect="once"), seen=lambda place: place == link) is not None

    def test_a_file_of_the_workspace_is_no_place_outside(self) -> None:
        assert asks(act("page.html"), local=lambda place: place == "page.html") is None


class TestNamed:
    @pytest.mark.parametrize(
        "place",
        [
            "https://shop.example/other?x=1",
            "http://shop.example",
            "HTTPS://SHOP.EXAMPLE:443/",
            "https://www.shop.example/",
            "https://api.example:8443/v1",
            "王@corp.example",
        ],
    )
    def test_a_host_covers_its_urls_and_anything_else_is_named_as_a_whole(self, place: str) -> None:
        assert is_named(place, [GOAL])

    @pytest.mark.parametrize(
        "place",
        [
            "https://evil.example/shop.example",
            "https://shop.example.evil.example/",
            "https://evilshop.example/",
            "https://a.shop.example/",
            "https://shop.example@evil.example/",
            "https://evil.example\\@shop.example/",
            "https://shop.example\n.evil.example/",
            "https://corp.example/",
            "https://api.example/",
            "https://api.example:9443/",
            "https://shop.example:99999/",
            "https:///shop.example",
            "corp.example",
            "小王@corp.example",
            "eve@evil.example",
            "//shop.example/",
        ],
    )
    def test_what_only_looks_alike_is_not_named(self, place: str) -> None:
        assert not is_named(place, [GOAL])

    def test_an_address_may_be_named_with_its_port(self) -> None:
        assert is_named("http://127.0.0.1:8080/x", ["crawl http://127.0.0.1:8080/"])
        assert not is_named("http://127.0.0.1:9090/x", ["crawl http://127.0.0.1:8080/"])
        assert is_named("http://[::1]:8080/", ["crawl http://[::1]:8080/"])


def test_destinations_are_read_from_texts_and_lists() -> None:
    arguments = {"to": ["a@x.example", ""], "url": " https://x.example ", "cc": None, "text": "b@x.example"}
    assert list(destinations(arguments, ["to", "url", "cc", "missing"])) == ["a@x.example", "https://x.example"]
