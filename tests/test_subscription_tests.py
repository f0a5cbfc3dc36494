"""The tests that docs/subscription-tests.md names are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = (TESTS.parent / "docs" / "subscription-tests.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py(?:::\w+)?)`", DOCUMENT))))
def test_each_test_that_is_named_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    text = (TESTS / path).read_text(encoding="utf-8")
    assert not test or re.search(rf'def {test}\b|"{test}",', text)
