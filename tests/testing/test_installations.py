"""Where PostgreSQL's programs lie."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.testing.servers import installations
from airflow_provider_pgetl.testing.servers.installations import ServerError, installation_of


def test_where_there_are_none_it_is_said_how_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installations, "installations", dict)
    with pytest.raises(ServerError, match=r"no PostgreSQL 18 on this machine.*airflow-provider-pgetl\[demo\]"):
        installation_of(18)
