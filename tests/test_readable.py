from __future__ import annotations

import pytest

from orchestrator.text.readable import readable

PAGE = """\
<!DOCTYPE html><html><head><title>销售 &amp; more</title><style>p {color: red}</style>
<script>if (a < b) document.write("<p>never</p>")</script></head>
<body><h1>Sales</h1>
<p>By   region,
see <a href="/east?a=1&amp;b=2">the <b>east</b></a> or <a href='javascript:alert(1)'>this</a>.<p>Second
<ul><li>one<li>two</ul>
<table><tr><th>Region<th>Sum</tr><tr><td>East<td>12</tr></table>
<pre>
  def f():
      return 1 &lt; 2
</pre>
<img src=x alt="a chart"><!-- hidden --><br>end
</body></html>"""

TEXT = """\
销售 & more

# Sales

By region, see [the east](https://shop.example/east?a=1&b=2) or this.

Second

- one
- two

| Region | Sum
| East | 12

  def f():
      return 1 < 2

(image: a chart)
end"""


def test_a_page_becomes_text_with_its_headings_lists_tables_and_links() -> None:
    assert readable(PAGE, "https://shop.example/a/b") == TEXT


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a < b and b > c", "a < b and b > c"),
        ("5 <6", "5 <6"),
        ("<p>it's <p title='a > b'>here", "it's\n\nhere"),
        ("<p it's>here", "here"),
        ('<a href="x" title="a>b">t</a>', "[t](https://a.example/x)"),
        ("<a href=https://a.example/>t</a>u", "[t](https://a.example/)u"),
        ("<a href='#top'>t</a>", "t"),
        ("<a href='http://[bad/'>t</a>", "t"),
        ("<a href=https://a.example></a>x", "x"),
        ("<script>never", ""),
        ("<SCRIPT>a</SCRIPT >b", "b"),
        ("<svg/>after", "after"),
        ("<!-- never", ""),
        ("a<!doctype x>b", "ab"),
        ("<p", ""),
        ('<p class="', ""),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
        ("&nbsp;&lt;b&gt;", "<b>"),
        ("a\r\nb", "a b"),
    ],
)
def test_what_is_not_well_formed_still_gives_its_text(html: str, text: str) -> None:
    assert readable(html, "https://a.example/").strip() == text


HOSTILE = {
    "deep": "<div>",
    "comments": "<!--",
    "declarations": "<!",
    "angles": "<",
    "tags": "<a ",
    "quotes": '<a b="',
    "equals": "<a =",
    "ends": "</",
    "scripts": "<script>",
    "closed": "<script></script>",
    "links": "<a href=https://a.example/>x",
    "attributes": "<img alt=",
    "entities": "&#",
    "entity": "&#9",
    "spaces": "<p   ",
    "lines": "<br> \t",
}


@pytest.mark.timeout(20)  # a part that takes quadratic time would need minutes
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_page_is_read_in_linear_time(unit: str) -> None:
    assert len(readable(unit * (1_000_000 // len(unit)), "https://a.example/")) < 2_000_000
