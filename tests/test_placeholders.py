import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.text.placeholders import fill, fill_tree, names


def test_only_the_braced_form_is_a_variable() -> None:
    text = "$name costs $5, ${姓名} pays ${price.total-sum}; ${1x} ${} $$ ${a b}"
    assert list(names(text)) == ["姓名", "price.total-sum"]
    assert fill(text, {"姓名": "李", "price.total-sum": 5}) == "$name costs $5, 李 pays 5; ${1x} ${} $$ ${a b}"


def test_a_doubled_dollar_before_a_brace_stands_for_the_text_itself() -> None:
    assert fill("$${HOME} and ${x}", {"x": 1}) == "${HOME} and 1"


@given(st.text())
def test_text_without_placeholders_stays_as_it_is(text: str) -> None:
    text = text.replace("{", "(")
    assert fill(text, {}) == text


@given(st.text())
def test_a_value_is_never_read_as_a_placeholder_again(value: str) -> None:
    assert fill("<${a}>", {"a": value, "b": "no"}) == f"<{value}>"


def test_an_unknown_variable_is_told_with_its_line_and_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError) as caught:
        fill("one\ntwo ${role}\n${x}", {"roles": ""}, file="p.md")
    assert str(caught.value).splitlines() == [
        "p.md:2: unknown variable ${role}; did you mean 'roles'? (write $${role} for the text itself)",
        "p.md:3: unknown variable ${x}; allowed: 'roles' (write $${x} for the text itself)",
    ]


def test_a_text_that_is_one_placeholder_becomes_the_value_and_unknown_names_stay() -> None:
    tree = {"n": "${n}", "list": ["is ${n}", 3, "${outcomes.a.value}"]}
    assert fill_tree(tree, {"n": 7}) == {"n": 7, "list": ["is 7", 3, "${outcomes.a.value}"]}
