from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text.relevance import Bm25, content_words, terms


def searched(*documents: str) -> Bm25:
    return Bm25(list(map(terms, documents)))


def test_an_identifier_has_the_words_that_a_sentence_has() -> None:
    assert terms("readCSVFile") == terms("read_csv_files") == terms("reading CSV filed") == ["read", "csv", "fil"]


def test_chinese_is_compared_by_pairs_of_neighbouring_characters() -> None:
    assert terms("销售额 SQL") == ["销售", "售额", "sql"]
    assert terms("的") == ["的"]


def test_short_words_are_no_content() -> None:
    assert content_words("The sum of 销售额 by region") == {"销售", "售额", "region"}


def test_the_document_with_the_rare_word_is_the_best() -> None:
    search = searched("read a file", "read a table of a file", "查询 销售 表", "send a letter")
    assert search.best("which letter is it?", 3) == [3]
    assert search.best("read the table", 2) == [1, 0]
    assert search.best("各区域的销售额", 3) == [2]


def test_nothing_in_common_is_nothing_found() -> None:
    assert searched("one", "two").best("three 三", 5) == []
    assert searched().best("anything", 5) == []
    assert searched("", "").best("anything", 5) == []


@given(st.lists(st.text(), max_size=8), st.text())
def test_scores_are_never_negative_and_one_a_document(documents: list[str], query: str) -> None:
    scores = searched(*documents).scores(query)
    assert len(scores) == len(documents)
    assert all(score >= 0 for score in scores)
