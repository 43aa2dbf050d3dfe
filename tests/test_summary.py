from orchestrator.summary import figures, split_facts, with_facts


def test_facts_are_taken_out_wherever_they_stand() -> None:
    said = "## Goal\nCount.\n\n## Facts\n- 12 cranes\n\n- 韩雪梅 leads\n\n## Open points\n- the yard"
    assert split_facts(said) == ("## Goal\nCount.\n\n## Open points\n- the yard", ["- 12 cranes", "- 韩雪梅 leads"])


def test_a_summary_in_another_form_stays_whole() -> None:
    assert split_facts("Facts were told.") == ("Facts were told.", [])


def test_facts_that_are_put_back_can_be_taken_out_again() -> None:
    assert split_facts(with_facts("## Goal\nCount.", ["- one", "- two"])) == ("## Goal\nCount.", ["- one", "- two"])
    assert with_facts("## Goal\nCount.", []) == "## Goal\nCount."
    assert with_facts("", ["- one"]) == "## Facts\n- one"


def test_figures_are_quoted_that_no_fact_has() -> None:
    page = "Calm. Silo 6 holds 6,142 tonnes. The lease ends on 14 March 2031. 两只猫。预算是83,270元。"
    assert figures(page, ["- silo 6: 6142 t", "- 14 cranes since 2031"], 100, but="out:") == "预算是83,270元。"
    assert figures(page, ["- 14 cranes", "- since 2031"], 100, but="Silo") == (
        "The lease ends on 14 March 2031. 预算是83,270元。"
    )
