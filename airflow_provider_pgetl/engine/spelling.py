"""What somebody who wrote a name wrongly may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like this one, if one looks like it at all. Case is no difference."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``; did you mean "orders"?``, or a full stop. What has quotes itself gets no more."""
    meant = nearest(word, known)
    if meant is None:
        return "."
    return f"; did you mean {meant}?" if '"' in meant else f'; did you mean "{meant}"?'
