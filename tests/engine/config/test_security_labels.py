"""Labels of PostgreSQL Anonymizer stand for rules; one without a counterpart is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgetl.engine.config.security_labels import _FUNCTIONS, _NAMES, rule_of
from airflow_provider_pgetl.engine.config.transformers import transformer
from airflow_provider_pgetl.engine.model.errors import PgetlError


@pytest.mark.parametrize(
    ("label", "use", "options"),
    [
        ("NOT MASKED", "keep", {}),
        ("MASKED WITH VALUE NULL", "null", {}),
        ("masked with value 'it''s'", "constant", {"value": "it's"}),
        ("MASKED WITH VALUE $$CONFIDENTIAL$$", "constant", {"value": "CONFIDENTIAL"}),
        ("MASKED WITH VALUE $x$a$$b$x$", "constant", {"value": "a$$b"}),
        ("MASKED WITH VALUE 0", "constant", {"value": "0"}),
        ("MASKED WITH FUNCTION anon.fake_email()", "email", {}),
        ("MASKED WITH FUNCTION anon.pseudo_first_name(id)", "first_name", {}),
        ("MASKED WITH FUNCTION anon.dummy_last_name()", "last_name", {}),
        ("MASKED WITH FUNCTION anon.random_zip()", "address", {"part": "postcode"}),
        ("MASKED WITH FUNCTION anon.random_string(12)", "string", {}),
        ("MASKED WITH FUNCTION anon.partial(phone, 2, $$***$$, 2)", "mask", {}),
        ("MASKED WITH FUNCTION anon.partial_email(email)", "mask", {"kind": "email"}),
        ("MASKED WITH FUNCTION anon.hash(email)", "hash", {}),
    ],
)
def test_labels(label: str, use: str, options: dict[str, Any]) -> None:
    assert rule_of("public.people", "c", label) == (use, options)


@pytest.mark.parametrize(
    "label", ["MASKED WITH FUNCTION anon.noise(c, 0.5)", "MASKED WITH FUNCTION my.own(c)", "something", "MASKED"]
)
def test_labels_that_say_something_else(label: str) -> None:
    with pytest.raises(PgetlError, match=r"security label on c of public\.people has no counterpart"):
        rule_of("public.people", "c", label)


def test_every_label_leads_to_a_transformer_that_exists() -> None:
    for use, options in (*_NAMES.values(), *_FUNCTIONS.values()):
        transformer(use, options)
