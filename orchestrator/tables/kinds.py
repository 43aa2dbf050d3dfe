"""Which type a column of text has: the one that loses nothing of what is written."""

from __future__ import annotations

from typing import Any

_MAX_SCALE = 6
"""Digits after the point up to which numbers are exact decimals; more come from measuring, not from counting money."""
_NUMBER = r"-?(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?"
_PLAIN_NUMBER = r"-?(0|[1-9]\d*)(\.\d+)?"
_SCIENTIFIC = r"-?(0|[1-9]\d*)((\.\d+)?([eE][-+]\d+)?|\.\d+[eE]\d+)"
_DATE = r"\d{4}[-/]\d{1,2}[-/]\d{1,2}"
_TIMESTAMP = _DATE + r"[ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"


def typed(connection: Any, table: str, place: str, *, grouped: bool) -> str:
    """Return the SQL that gives a column of text the type that loses nothing of what is written."""
    number = _NUMBER if grouped else _PLAIN_NUMBER
    count, numbers, scientific, whole, fraction, dates, timestamps, booleans = connection.execute(
        f"""SELECT count(v), count_if(regexp_full_match(v, $number)), count_if(regexp_full_match(v, $scientific)),
            max(length(regexp_replace(split_part(v, '.', 1), '[-,]', '', 'g'))), max(length(split_part(v, '.', 2))),
            count_if(regexp_full_match(v, $date) AND TRY_CAST(v AS DATE) IS NOT NULL),
            count_if(regexp_full_match(v, $timestamp) AND TRY_CAST(v AS TIMESTAMP) IS NOT NULL),
            count_if(lower(v) IN ('true', 'false'))
            FROM (SELECT DISTINCT trim({place}) AS v FROM {table} WHERE {place} IS NOT NULL)""",
        {"number": number, "scientific": _SCIENTIFIC, "date": _DATE, "timestamp": _TIMESTAMP},
    ).fetchone()
    if count == 0:
        return place
    if count == numbers and (kind := _number_type(whole, fraction)):
        return f"CAST(replace(trim({place}), ',', '') AS {kind})"
    for kind, fitting in (("DOUBLE", scientific), ("DATE", dates), ("TIMESTAMP", timestamps), ("BOOLEAN", booleans)):
        if count == fitting and not (kind == "DOUBLE" and count == numbers):
            return f"CAST(trim({place}) AS {kind})"
    return place


def _number_type(whole: int, fraction: int) -> str | None:
    """Return the type for numbers of so many digits before and after the point; None: only text can hold them."""
    if fraction > _MAX_SCALE:
        return "DOUBLE"
    if whole + fraction > 38:
        return None
    if fraction == 0 and whole <= 18:
        return "BIGINT"
    return f"DECIMAL({18 if whole + fraction <= 18 else 38}, {fraction})"
