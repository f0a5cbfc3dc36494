"""The random id that tells a pipeline's row in one state database from its namesakes elsewhere.

It becomes part of slot names, hence short, lower case, letters and digits only. A pipeline that is destroyed and begun
anew is another instance; what still works for the former one is told so by `destroyed`.
"""

from __future__ import annotations

import base64
import secrets

from airflow_provider_pgetl.engine.errors import StateReplaced

LENGTH = 6


def new_instance() -> str:
    """Six characters of lower-case base32: thirty random bits."""
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()[:LENGTH]


def destroyed(pipeline_id: str) -> StateReplaced:
    return StateReplaced(
        f'The stored state of pipeline "{pipeline_id}" was destroyed while this process was at work.',
        remedy="Start the pipeline again if it is still wanted; it begins anew.",
    )


def restored(pipeline_id: str) -> StateReplaced:
    return StateReplaced(
        f'The stored state of pipeline "{pipeline_id}" was set back to an earlier one while this process was at work.',
        remedy="Start the pipeline again: it looks for what is missing in that state, and says what to do.",
    )
