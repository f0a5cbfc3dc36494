"""What each task of a replication says of itself in Airflow's UI, where one is about to clear it.

The sentences are those of the README's table, one page for each kind of task; they are stored with every task of a DAG,
so they are few.
"""

from __future__ import annotations

from typing import Final

PREPARE: Final = """\
Brings source, state and destination together: preflight, publication, tables, slots.

**Clear:** does that again. Tables that are Ready stay so, and their tasks are passed over."""

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
