"""Every kind of error has one line that says who tries again, how a run ends, and what a person should do."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.model.errors import DIRECTIVES, Backoff, ErrorKind, Fenced, PgetlError, classify
from airflow_provider_pgetl.engine.model.phases import RetryPolicy


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_has_a_directive_with_a_remedy(kind: ErrorKind) -> None:
    directive = DIRECTIVES[kind]
    assert directive.exit_code in (1, 2, 3, 4)
    assert directive.remedy.strip()
    assert PgetlError(kind, "It is broken.").directive is directive


def test_a_remedy_of_the_place_is_better_than_the_table_s() -> None:
    assert str(PgetlError(ErrorKind.STORE, "It is gone.")) == f"It is gone. {DIRECTIVES[ErrorKind.STORE].remedy}"
    assert str(PgetlError(ErrorKind.STORE, "It is gone.", remedy="Look behind it.")) == "It is gone. Look behind it."


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        (None, ErrorKind.CONNECTION),
        ("08006", ErrorKind.CONNECTION),
        ("57P01", ErrorKind.CONNECTION),
        ("40P01", ErrorKind.CONNECTION),
        ("28P01", ErrorKind.AUTHENTICATION),
        ("42501", ErrorKind.PRIVILEGE),
        ("42704", ErrorKind.TYPE),
        ("42P01", ErrorKind.SCHEMA),
        ("55006", ErrorKind.SLOT_IN_USE),
        ("53100", ErrorKind.RESOURCES),
        ("22003", ErrorKind.VALUE),
        ("23505", ErrorKind.CONSTRAINT),
        ("XX000", ErrorKind.INTERNAL),
    ],
)
def test_a_server_s_error_is_known_by_its_sqlstate(sqlstate: str | None, kind: ErrorKind) -> None:
    assert classify(sqlstate) is kind


def test_what_passes_by_itself_is_tried_again_in_place() -> None:
    assert PgetlError(ErrorKind.CONNECTION, "It is away.").transient
    assert not PgetlError(ErrorKind.VALUE, "It does not fit.").transient
    assert not Fenced("Somebody else writes.").transient


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (PgetlError(ErrorKind.VALUE, "-"), True),
        (PgetlError(ErrorKind.TABLE_REWRITTEN, "-", table="t"), True),
        (PgetlError(ErrorKind.COPY_DIED, "-", table="t"), True),
        (PgetlError(ErrorKind.COPY_DIED, "the snapshot is gone"), False),
        (Fenced("-", table="t"), True),
        (Fenced("-"), False),
        (PgetlError(ErrorKind.CONNECTION, "-", table="t"), False),
        (PgetlError(ErrorKind.RESOURCES, "-", table="t"), False),
        (PgetlError(ErrorKind.AUTHENTICATION, "-"), False),
    ],
)
def test_trouble_with_a_server_concerns_all(error: PgetlError, *, alone: bool) -> None:
    assert error.concerns_one_table is alone


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        (ErrorKind.TABLE_REWRITTEN, RetryPolicy("timed", 105.0)),
        (ErrorKind.REWRITTEN_AGAIN, RetryPolicy("manual")),
        (ErrorKind.CONNECTION, RetryPolicy("timed", 105.0)),
        (ErrorKind.UNSENT_VALUE, RetryPolicy("timed", 105.0, anew=True)),
        (ErrorKind.VALUE, RetryPolicy("manual")),
        (ErrorKind.CONFIG, RetryPolicy("none")),
    ],
)
def test_the_table_of_errors_says_who_retries(kind: ErrorKind, policy: RetryPolicy) -> None:
    assert RetryPolicy.of(kind.directive.retry, 105.0) == policy


def test_pauses_double_up_to_the_longest() -> None:
    assert [Backoff(0.5, 3.0).after(failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
