"""The plugin that Airflow reads by the entry point `airflow.plugins`.

Every process of Airflow imports this, tasks too, so it names the page and imports none of it: the api-server does that
at the page's first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_pgetl.naming import MOUNT

_Message = MutableMapping[str, Any]


class ReplicationPage:
    """The ASGI application `page.app`, imported with its first request, off the event loop."""

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        module = await asyncio.to_thread(import_module, "airflow_provider_pgetl.ui.page")
        await module.app(scope, receive, send)


class PgetlPlugin(AirflowPlugin):
    """One page, in the menu under Browse."""

    name = "pgetl"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow declares it so
        {"app": ReplicationPage(), "url_prefix": MOUNT, "name": "pgetl"}
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Replication",
            # Relative to Airflow's own address, whatever that is.
            "href": f"{MOUNT.removeprefix('/')}/",
            "url_route": "replication",
            "destination": "nav",
            "category": "browse",
        }
    ]
