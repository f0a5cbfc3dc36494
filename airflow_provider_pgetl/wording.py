"""Translates the engine's remedies for users of Airflow. Pure.

The engine's remedies refer to pipeline files and the command line. In Airflow a table is copied again by a Clear of its
`data_sync`, and a declaration is Python. The sentences remain the engine's; only commands, keys of a pipeline file, and
their values are replaced.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.model.errors import Finding


_VALUES = {"true": "True", "false": "False"}

# Applied in this order: the first rule that matches a piece of text replaces it.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"with `pgetl reset FILE [^`]*`", "by a Clear of its `data_sync`"),
        (r"`pgetl reset FILE [^`]*`", "clear its `data_sync`"),
        (r"with `pgetl reset`", "by a Clear of `data_sync` of each"),
        (r"(?<=[Tt]hen )roll (the table|it) back\b", "clear its `ready`"),
        (r"\broll (the table|it) back\b", "clear its `ready`"),
        (r"\bthen reset the table\b", "then clear its `data_sync`"),
        (r"`pgetl resume FILE` has it go on", "A `ResumeOperator` has it go on"),
        (r"`pgetl check` again", "`prepare` again"),
        (r"Go on with `pgetl run FILE`; or copy under another id; or ", "Copy under another id; or "),
        (r"Stop `pgetl copy` or `pgetl run` first", "Wait for its runs to end, or mark them failed, first"),
        (r"Stop `pgetl run` first", "Pause its DAG and mark `apply` as failed first"),
        (r"and then `pgetl run FILE`", "and then start a run"),
        (r"`pgetl run` or `pgetl copy` takes them up", "`prepare` takes them up"),
        (r"`pgetl run FILE` brings (it there|them)", r"a run of the DAG brings \1"),
        (r"`pgetl status` says why not", "Browse → Replication says why not"),
        (r"Look by `pgetl status FILE`", "Look in Browse → Replication"),
        (r"`pgetl transform preview FILE", "`pgetl transform preview airflow:DAG"),
        (r"`pgetl check FILE` says", "a `CheckOperator` says"),
        (r"`pgetl run FILE`, or the task `prepare`,", "The task `prepare`"),
        (r"`pgetl verify FILE` does that", "A `VerifyOperator` does that"),
        (r"`pgetl verify FILE", "`pgetl verify airflow:DAG"),
        (r"`pgetl merge FILE` first,", "Have a `MergeOperator` run first,"),
        (r"`pgetl run` takes them up", "`prepare` takes them up"),
        (r"`pgetl status` lists its tables", "Browse → Replication lists its tables"),
        (r"`pgetl destroy FILE`", "destroy the pipeline with a `DestroyOperator`"),
        (r"See `pgetl --help`\.", "See the documentation of the provider."),
        (r"Correct the pipeline file\.", "Correct the declaration in the DAG's file."),
        (r"(Set|Point) \[state\] uri (to|at) ", r"\1 `state_conn_id` \2 the connection of "),
        (r'[Ss]et (\w+) (?:=|to) "(\w+)" or "(\w+)" in \[destination\]', r'Declare `options={"\1": "\2"}`, or "\3",'),
        (r'[Ss]et (\w+) (?:=|to) "(\w+)" in \[destination\]', r'Declare `options={"\1": "\2"}`'),
        (r"by `columns = \[\.\.\.\]` of its \[\[table\]\]", "by `columns=[...]` of its `Table(...)`"),
        (
            r'; a store without TLS needs AWS_ALLOW_HTTP = "true"',
            "; the `endpoint_url` of one without TLS begins with http://",
        ),
        (r"\[destination\.storage\]", "the connection of the store"),
        (r"\bin the URI\b", "in its connection"),
        (
            r"Write postgresql://\S+; percent-encode special characters in its parts",
            "Correct the host of its connection",
        ),
        (r"\bcopy\.table_workers\b", "`table_workers` in `Copying(…)`"),
        (r"name it in `exclude`", "take it out of `tables`"),
        (r'Add uri = "env:NAME" to \[destination\]', "Name the connection of the destination"),
    )
)
_CLEAR = re.compile(r"\b[Cc]lear (its|this|the|`)|\bby a Clear\b")
_SETTING = re.compile(
    r"`?\b(?P<key>insert_only|manage_publication|failover|existing|on_slot_lost|mode|merge) = "
    r'(?P<value>"[^"]*"|true|false)`?'
)


def in_airflow(text: str) -> str:
    """Returns the text with commands and keys of a pipeline file replaced by what a user of Airflow does or writes."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return _SETTING.sub(_declared, text)


def with_clear(remedy: str, cleared: str) -> str:
    """Returns the remedy for users of Airflow, with exactly one Clear: where a rollback settles the matter, or the
    remedy names no action, a Clear of `cleared`; where the table must be copied again, of its `data_sync`."""
    words = in_airflow(remedy).replace("clear its `ready`", f"clear {cleared}")
    return words if _CLEAR.search(words) else f"{words} Then clear {cleared}.".lstrip()


def told(finding: Finding) -> dict[str, str | None]:
    """Returns the finding as an XCom contains it."""
    return {
        "severity": finding.severity,
        "problem": in_airflow(finding.problem),
        "remedy": in_airflow(finding.remedy),
        "table": finding.table,
    }


def _declared(found: re.Match[str]) -> str:
    value = found["value"]
    return f"`{found['key']}={_VALUES.get(value, value)}`"


# -- The documentation of each task of a replication in Airflow's UI, where users clear it. ----------------------------
#
# The sentences are those of the README's table, one page for each kind of task; they are stored with every task of a
# DAG, so they are few.

PREPARE: Final = """\
Brings source, state and destination together: preflight, publication, tables, slots.

**Clear:** does that again. Tables that are Ready stay so, and their tasks are passed over. Where this task waits
because that of the run before has just failed, it begins at once."""

APPLY: Final = """\
Streams the changes of all tables, deferred, in a process of the triggerer.

**Clear:** the worker is replaced, and resumes at the tables' positions. Nothing is copied again. **Pausing the DAG**
does not end this stream: mark this task as failed as well, or run a `PauseOperator`."""

MERGE: Final = """\
Merges by Spark what has landed beside the tables of the lake.

**Clear:** merges what has landed since."""

INIT: Final = """\
Registers the table.

**Clear:** the table is reset, its stored schemas are forgotten, and it is copied again. `apply` must stream in this
run, or be cleared as well."""

DATA_SYNC: Final = """\
Copies the table, with others of its group, from one snapshot, by Spark.

**Clear:** the table is copied again; readers keep the old data until the new copy is there. `apply` must stream in this
run, or be cleared as well. **Retry:** rolls the copy back, and copies again."""

FINISHED_COPY: Final = """\
Waits until the copy is published.

**Clear:** checks again; moves nothing."""

SYNC_DONE: Final = """\
Waits until what was changed during the copy has been applied, too.

**Clear:** before SyncDone, catch-up starts again from the finished copy; after it, checks. To copy the table again,
clear `data_sync`."""

READY: Final = """\
Waits until the table is followed by the stream of all tables.

**Clear:** an Errored table is rolled back to its last safe phase; where that is Init, this fails and names `data_sync`.
Any other is checked."""

CAUGHT_UP: Final = """\
Everything that was committed at the source before this run is in the destination, and every table is where it belongs.

**Clear:** moves nothing."""
