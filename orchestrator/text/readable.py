"""HTML as text that a model can read: headings, lists, tables and links stay, markup goes. Pure.

Written for pages by strangers: one pass that takes linear time on any input. (Parsers that build a tree, and the one of
the standard library, take minutes for a hostile megabyte.)
"""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

_MARKUP = re.compile(
    r"""
      <!-- .*? (?:-->|\Z)
    | <[!?] [^>]*+ (?:>|\Z)
    | < (?P<end>/?) (?P<tag>[a-zA-Z][^\s/>]*+)
        (?P<attributes> (?: [^>=]++ | = \s*+ (?: "[^"]*+ (?:"|\Z) | '[^']*+ (?:'|\Z) )?+ )*+ )
      (?:>|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Comment, declaration or tag; what is not closed ends with the page, so that no alternative is ever tried twice."""

_ATTRIBUTE = re.compile(r"""\b(href|alt)\s*+=\s*+(?:"([^"]*+)"?|'([^']*+)'?|([^\s>"']++))""", re.IGNORECASE)
_LEFT_OUT = frozenset({"script", "style", "template", "svg", "iframe", "object", "canvas", "math"})
_BEFORE = {
    **{f"h{level}": f"\n\n{'#' * level} " for level in range(1, 7)},
    **dict.fromkeys(("p", "ul", "ol", "dl", "table", "pre", "blockquote", "section", "article", "form", "hr"), "\n\n"),
    **dict.fromkeys(("div", "br", "tr", "dt", "dd", "header", "footer", "nav", "main", "option", "title"), "\n"),
    "li": "\n- ",
    "td": " | ",
    "th": " | ",
}
_AFTER = {tag: "\n\n" if text.startswith("\n\n") else "\n" for tag, text in _BEFORE.items() if text[0] == "\n"}
_LINKED = ("http://", "https://", "file://")


def readable(html: str, base: str = "") -> str:
    """Return the text of a page, links as `[text](address)`.

    Args:
        html: The page, or a part of one; it need not be well formed.
        base: Address of the page, which its links are relative to.
    """
    pieces: list[str] = []
    link: tuple[int, str] | None = None  # where the open link's text begins, and its address
    verbatim = False
    position = 0

    def add(text: str) -> None:
        """Add text, or what stands around an element, without doubling spaces and ends of lines."""
        last = pieces[-1][-1] if pieces else "\n"
        if not verbatim and last in " \n":
            text = text.lstrip(" ") if text[:1] != "\n" or last == " " else text[1:]
        if text:
            pieces.append(text)

    while match := _MARKUP.search(html, position):
        add(_text(html[position : match.start()], verbatim))
        position = match.end()
        tag, ends = (match["tag"] or "").lower(), bool(match["end"])
        if tag in _LEFT_OUT and not ends and not match[0].endswith("/>"):
            position = _end_of(tag, html, position)
        elif tag == "a":
            if link and (text := "".join(pieces[link[0] :]).strip()):
                pieces[link[0] :] = [f"[{text}]({link[1]})"]
            address = None if ends else _address(_attribute(match["attributes"], "href"), base)
            link = (len(pieces), address) if address else None
        elif tag == "img" and (alt := _attribute(match["attributes"], "alt").strip()):
            pieces.append(f"(image: {alt})")
        elif around := (_AFTER if ends else _BEFORE).get(tag):
            add(around)
        if tag == "pre":
            verbatim = not ends
    add(_text(html[position:], verbatim))
    lines = "\n".join(line.rstrip() for line in "".join(pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def _text(raw: str, verbatim: bool) -> str:
    try:
        text = unescape(raw)
    except ValueError:  # a character's number with thousands of digits
        text = raw
    return text if verbatim else re.sub(r"\s+", " ", text)


def _end_of(tag: str, html: str, start: int) -> int:
    end = re.compile(rf"</{tag}[^>]*+(?:>|\Z)", re.IGNORECASE).search(html, start)
    return end.end() if end else len(html)


def _attribute(attributes: str, name: str) -> str:
    for match in _ATTRIBUTE.finditer(attributes):
        if match[1].lower() == name:
            return _text(match[2] or match[3] or match[4] or "", verbatim=False)
    return ""


def _address(href: str, base: str) -> str | None:
    try:
        address = urljoin(base, href.strip())
    except ValueError:
        return None
    return address if address.startswith(_LINKED) and not href.startswith("#") else None
