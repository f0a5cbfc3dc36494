"""Quiet-time latency: from the source's commit until the row is visible in the destination.

Native subscription and our worker follow the same table at the same time; each row is watched for in both destinations
by the same kind of polling.
"""

from __future__ import annotations

import statistics
import threading
import time

import psycopg

from tests.benchmarks.backlog import TABLE
from tests.benchmarks.pair import Pair, native_subscription, our_pipeline

_ROWS = 200
_PAUSE = 0.05


class Watcher(threading.Thread):
    """Polls one destination for the newest row."""

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self._uri = uri
        self.seen: dict[int, float] = {}

    def run(self) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            newest = 0
            while newest < _ROWS:
                row = connection.execute("select max(id) from items").fetchone()
                if row and row[0] is not None and row[0] > newest:
                    newest = int(row[0])
                    self.seen[newest] = time.perf_counter()
                time.sleep(0.0005)


def main() -> None:
    with Pair.started(16, TABLE, "items") as pair, native_subscription(pair), our_pipeline(pair):
        pair.enable_native()
        stop = threading.Event()
        worker = threading.Thread(target=pair.stream, args=(stop,))
        worker.start()
        time.sleep(3)
        watchers = {"native": Watcher(pair.native), "pgetl": Watcher(pair.ours)}
        for watcher in watchers.values():
            watcher.start()
        committed = _write(pair.source)
        for name, watcher in watchers.items():
            watcher.join(30)
            delays = [(watcher.seen[number] - at) * 1000 for number, at in committed.items() if number in watcher.seen]
            deciles = statistics.quantiles(delays, n=10)
            print(f"{name}: p50 {statistics.median(delays):.2f} ms, p90 {deciles[-1]:.2f} ms, of {len(delays)} rows")
        stop.set()
        worker.join()


def _write(uri: str) -> dict[int, float]:
    committed = {}
    with psycopg.connect(uri, autocommit=True) as source:
        for number in range(1, _ROWS + 1):
            source.execute("insert into items values (%s, 0, 'quiet', 0, now(), null)", [number])
            committed[number] = time.perf_counter()
            time.sleep(_PAUSE)
    return committed


if __name__ == "__main__":
    main()
