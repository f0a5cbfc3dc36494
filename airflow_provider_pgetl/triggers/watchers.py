"""The watchers of a triggerer: one per state database and pipeline, shared by all who wait.

Hundreds of tables may wait at once, so per triggerer process and pipeline one connection listens and one look reads all
tables for everybody who waits (`engine.state.watching`).
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, WeakValueDictionary

from airflow_provider_pgetl.connections import STATE, avalue
from airflow_provider_pgetl.engine.state.watching import Watcher

_Watchers = WeakValueDictionary[tuple[str, str], Watcher]
_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watchers] = WeakKeyDictionary()


async def watcher(state_conn_id: str, pipeline: str) -> Watcher:
    """The one of this event loop. A changed password makes a new one; the old one goes with its last wait, and its
    password with it."""
    uri = await avalue(STATE, state_conn_id)
    watchers = _WATCHERS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return watchers.setdefault((uri, pipeline), Watcher(uri, pipeline))
