"""A StatsD server that remembers what it was told of pgetl."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

_DATAGRAM = 65536


class StatsdListener:
    """`gauges` holds the latest value of each, `counters` the sum; a name comes with its tags as InfluxDB spells
    them."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counters: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, name="statsd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    @property
    def settings(self) -> Mapping[str, str]:
        """What makes an Airflow speak to it."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self._socket.getsockname()[1]),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        }

    def _listen(self) -> None:
        while datagram := self._socket.recv(_DATAGRAM):
            for line in datagram.decode().splitlines():
                self._take(line)

    def _take(self, line: str) -> None:
        name, _, rest = line.partition(":")
        value, kind = rest.split("|")[:2]
        if not name.startswith("airflow.pgetl."):
            return
        if kind == "g":
            self.gauges[name] = float(value)
        else:
            self.counters[name] = self.counters.get(name, 0) + int(value)
