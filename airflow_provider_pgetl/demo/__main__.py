"""``python -m airflow_provider_pgetl.demo [--once] [--destination delta|postgres] [--orders 60000]``"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from types import FrameType

from airflow_provider_pgetl.demo.demonstration import DemoFailed, Interrupted, demonstrate
from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.demo.observing import open_screen
from airflow_provider_pgetl.testing.servers.airflow_processes import AirflowError
from airflow_provider_pgetl.testing.servers.installations import ServerError

_INTERRUPTED = 130


class _Stopping:
    """Handles Ctrl-C and SIGTERM, once: the shutdown must not be interrupted again."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if not self.event.is_set():
            self.event.set()
            raise Interrupted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_pgetl.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end when source and replica have been found equal")
    parser.add_argument("--destination", choices=sorted(DESTINATIONS), default="delta")
    parser.add_argument("--orders", type=int, default=60_000, help="how large the shop is")
    given = parser.parse_args()
    stopping = _Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping)
    screen = open_screen()
    try:
        demonstrate(screen, given.destination, once=given.once, orders=given.orders, stop=stopping.event)
    except Interrupted:
        return 0 if not given.once else _INTERRUPTED
    except (DemoFailed, AirflowError, ServerError) as failed:
        screen.say(f"The demo failed: {failed}")
        return 1
    finally:
        screen.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
