from __future__ import annotations

from ipaddress import ip_address

import pytest

from orchestrator.addresses import Allowed, not_public, read_host

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8"]
INWARD = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "0.0.0.0": "this machine",
    "10.1.2.3": "private",
    "172.31.255.255": "private",
    "192.168.0.1": "private",
    "169.254.1.1": "link-local",
    "169.254.169.254": "metadata",
    "168.63.129.16": "metadata",
    "100.100.100.200": "metadata",
    "fd00:ec2::254": "metadata",
    "100.64.0.1": "carrier",
    "224.0.0.1": "multicast",
    "239.255.255.250": "multicast",
    "255.255.255.255": "reserved",
    "240.0.0.1": "reserved",
    "192.0.2.1": "reserved",
    "198.18.0.1": "reserved",
    "::": "this machine",
    "::1": "loopback",
    "fe80::1": "link-local",
    "fec0::1": "reserved",
    "fc00::1": "private",
    "fd12:3456::1": "private",
    "ff02::1": "multicast",
    "2001:db8::1": "reserved",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "reserved",  # Teredo
    "100::1": "reserved",
    "4000::1": "reserved",
    "::127.0.0.1": "reserved",
    "::ffff:127.0.0.1": "loopback address within IPv6 (127.0.0.1)",
    "::ffff:a9fe:a9fe": "metadata address within IPv6 (169.254.169.254)",
    "::ffff:0:10.0.0.1": "private address within IPv6 (10.0.0.1)",
    "64:ff9b::7f00:1": "loopback address within IPv6 (127.0.0.1)",
    "64:ff9b:1::7f00:1": "reserved",
    "2002:7f00:1::": "loopback address within IPv6 (127.0.0.1)",
    "2002:c0a8:101::1": "private address within IPv6 (192.168.1.1)",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_one_in_each_form(address: str) -> None:
    assert not_public(ip_address(address)) is None


@pytest.mark.parametrize(("address", "kind"), INWARD.items())
def test_an_address_that_leads_inward_is_told_by_its_kind(address: str, kind: str) -> None:
    assert kind in (not_public(ip_address(address)) or "")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("百度.中国", "xn--wxtr44c.xn--fiqs8s"),
        ("EXAMPLE。com", "example.com"),
        ("straße.example", "xn--strae-oqa.example"),
        ("my_host", "my_host"),
        ("3com.example", "3com.example"),
    ],
)
def test_a_name_is_read_as_dns_knows_it(text: str, read: str) -> None:
    assert read_host(text) == read


@pytest.mark.parametrize("text", ["8.8.8.8", "[::1]", "::1", "[::FFFF:1.2.3.4]"])
def test_an_address_is_read_as_one(text: str) -> None:
    assert read_host(text) == ip_address(text.strip("[]"))


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.0.0.01", "127.0.0.1"),
        ("127。0。0。1", "127.0.0.1"),
        ("①②⑦.0.0.1", "127.0.0.1"),
        ("134744072", "8.8.8.8"),
        ("1.2.3.4.5", ""),
        ("999.0.0.1", ""),
        ("example.0x7f", ""),
    ],
)
def test_an_address_in_an_unusual_form_is_refused_with_what_it_may_mean(text: str, means: str) -> None:
    with pytest.raises(ValueError, match="unusual way") as caught:
        read_host(text)
    assert (f"it may mean {means};" in str(caught.value)) is bool(means)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "-a.example",
        "a b",
        "a/b",
        "a@b",
        "a\r\nb",
        "a\x00b",
        "a%2eb",
        "é" * 70,
        "a." * 200,
        "*.a.example",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no host name"):
        read_host(text)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "[fe80::1%25lo]", "[::1", "1::2::3", "a:80:90", "[example.com]:80"])
def test_what_is_no_address_of_ipv6_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"IPv6|zone"):
        read_host(text)


@pytest.mark.parametrize(
    ("entry", "name", "address", "port", "covers"),
    [
        ("Intranet.Example", "intranet.example", "10.0.0.1", 80, True),
        ("intranet.example", "evil.example", "10.0.0.1", 80, False),
        ("intranet.example:8080", "intranet.example", "10.0.0.1", 8080, True),
        ("intranet.example:8080", "intranet.example", "10.0.0.1", 80, False),
        ("10.0.0.1", "any.example", "10.0.0.1", 80, True),
        ("10.0.0.1", "any.example", "10.0.0.2", 80, False),
        ("10.0.0.0/8", "any.example", "10.255.0.1", 80, True),
        ("10.0.0.0/8", "any.example", "::1", 80, False),
        ("[::1]:80", "any.example", "::1", 80, True),
        ("[::1]:80", "any.example", "::1", 81, False),
        ("::1", "any.example", "::1", 81, True),
    ],
)
def test_an_entry_covers_what_it_names(entry: str, name: str, address: str, port: int, covers: bool) -> None:
    assert Allowed.read(entry).covers(name, ip_address(address), port) is covers


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("http://localhost:80", "is a URL; write only its host, or host:port"),
        ("10.0.0.7/8", "has host bits set"),
        ("localhost:0", "a port is 1 to 65535"),
        ("localhost:70000", "a port is 1 to 65535"),
        ("", "is no host name"),
        ("2130706433", "unusual way"),
        ("0.0.0.0/99", "not appear to be|not a valid"),
        ("a:b", "is no IPv6 address"),
    ],
)
def test_an_entry_that_names_nothing_is_refused_with_the_reason(entry: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Allowed.read(entry)
