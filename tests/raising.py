"""The engine's errors, expected with what they are told by: their kind, and the table that they concern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError


@contextmanager
def raises(
    kind: ErrorKind, table: object = None, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[PgetlError]]:
    """`table`: if it is given, that which the error names."""
    with pytest.raises(PgetlError, match=match) as caught:
        yield caught
    assert caught.value.kind == kind, caught.value
    assert table is None or caught.value.table == str(table), caught.value
