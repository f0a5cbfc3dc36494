"""For how long nobody streams a pipeline, seen at its slot. The figures are printed: `pytest -rP` shows them."""

import threading
import time
from types import TracebackType
from typing import Self

from airflow_provider_pgetl.testing.servers.postgres_servers import Database

_LOOK_SECONDS = 0.05


class Gaps:
    """While it is entered. `found`: how long the slot of the stream was not in use, each time, in seconds."""

    def __init__(self, source: Database, pipeline: str, what: str) -> None:
        self.found: list[float] = []
        self._what = what
        self._source = source
        self._query = (
            f"select active from pg_replication_slots where slot_name ~ '^pgetl_{pipeline}_[a-z0-9]{{6}}_apply$'"
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        time.sleep(1.0)  # the end of the last gap is seen as well
        self._over.set()
        self._thread.join(30)
        print("gaps", self._what, self.found)

    def _watch(self) -> None:
        since: float | None = None
        while not self._over.wait(_LOOK_SECONDS):
            streams = self._source.execute(self._query) == [(True,)]
            if streams and since is not None:
                self.found.append(round(time.monotonic() - since, 2))
            since = None if streams else since or time.monotonic()
