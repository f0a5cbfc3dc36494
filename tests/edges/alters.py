"""Edges: drawn ALTERs and what else people do to tables and publications between transactions.

Each says what it may lead to. `reason`: what the reason of an Errored table must match; None where nothing may come of
it, because every replicator can go on. `refused`: what a refusal to run may say (exit code 3), after which a person
settles it by `undo`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.edges.tables import Table, draw_column
from tests.edges.values import WIDE, WIDER

COLUMNS = r"(?i)column|\btype\b|changed at the source"
IDENTITY = r"(?i)identity|\bkey\b"
GONE = r"(?i)dropped|created|renamed|does not exist|not in|taken out|not published"
PUBLICATION = r"(?i)publication|published|filter|column"
PARTITIONS = r"(?i)partition"
REWRITTEN = "an ALTER may have changed values"
LABELS = r"(?i)enum|label|type"


@dataclass(frozen=True)
class Alter:
    """`statements` are one transaction, unless `alone`. `breaks`: UPDATE and DELETE may fail at the source after it,
    by Postgres' own rules. `tables` are those that it concerns. `reset`: nothing can notice it, so the manual says to
    copy the table again, which is done at once."""

    what: str
    tables: tuple[str, ...]
    statements: tuple[str, ...]
    reason: str | None = None
    refused: str | None = None
    undo: tuple[str, ...] = ()
    breaks: bool = False
    mends: bool = False
    alone: bool = False
    reset: bool = False


@dataclass(frozen=True)
class Scene:
    """What alterations are drawn in. `publications`: of tables, and of those of which only inserts are sent."""

    tables: Sequence[Table]
    major: int
    managed: bool
    publications: tuple[str, str]

    def publication(self, table: Table) -> str:
        return self.publications[1] if table.insert_only else self.publications[0]


# An alteration, with how many steps later it comes.
Drawn = list[tuple[int, Alter]]
Draw = Callable[[random.Random, Table, Scene], Drawn]


def draw_alter(dice: random.Random, scene: Scene) -> Drawn:
    """One that is possible, or a few that belong together."""
    while True:
        draw = dice.choices([draw for draw, _ in _ALTERS], [weight for _, weight in _ALTERS])[0]
        tables = [table for table in scene.tables if not table.frozen]
        if tables and (drawn := draw(dice, dice.choice(tables), scene)):
            return drawn


def _one(
    what: str,
    table: Table,
    *statements: str,
    reason: str | None = None,
    refused: str | None = None,
    alone: bool = False,
) -> Drawn:
    return [(0, Alter(what, (table.name,), statements, reason, refused or reason, alone=alone))]


# -- what nothing may come of -----------------------------------------------------------------------------------------


def _maintain(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    name = dice.choice(table.relations[1:] or table.relations)
    alone = [f"vacuum full {name}", f"vacuum (freeze, analyze) {name}", f"reindex table {name}"]
    if not table.partitioned and table.unique == "primary":
        alone.append(f"cluster {name} using {table.name}_pkey")
    statement = dice.choice(alone)
    return _one("maintenance", table, statement, alone=True)


def _harmless(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    column = dice.choice(table.columns)
    number = table.new_name()
    away = f"{table.name}_away"
    statements = [
        f"alter table {table.sql} add constraint c{number} check (n is null or n > -100000000) not valid",
        f"create index on {table.sql} (n)",
        f"comment on table {table.sql} is 'it''s {number}'",
        f"alter table {table.sql} alter n set default 5",
        f"alter table {table.relations[-1]} set (fillfactor = 70)",
        f"alter table {table.sql} alter {column.name} set statistics 10",
        f"alter table {table.sql} rename to {away}; alter table edges.{away} rename to {table.name}",
        f"alter table {table.sql} add column x int; alter table {table.sql} drop column x",
        f"alter table {table.sql} rename n to m; alter table {table.sql} rename m to n",
    ]
    return _one("harmless", table, *dice.choice(statements).split("; "))


def _again(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """The same key, by another index."""
    if table.unique != "primary":
        return []
    drop, add = f"drop constraint {table.name}_pkey", f"add primary key ({table.primary})"
    return _one("primary key made anew", table, f"alter table {table.sql} {drop}, {add}")


# -- identities -------------------------------------------------------------------------------------------------------


def _to_full(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if table.identity == "full" or table.listed or table.insert_only or table.computes_unsent:
        return []
    table.identity = "full"
    return _one("identity full", table, *table.full(), reason=IDENTITY)


def _to_default(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if table.identity == "default" or table.unique != "primary" or _filters_others(table) or table.insert_only:
        return []
    table.identity = "default"
    statements = [f"alter table {relation} replica identity default" for relation in table.relations]
    return _one("identity default", table, *statements, reason=IDENTITY)


def _to_index(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if table.partitioned or table.identity == "index" or table.unique == "no" or _filters_others(table):
        return []
    if table.insert_only:
        return []
    name, key = f"{table.name}_{table.new_name()}", ", ".join(table.key.names)
    table.identity = "index"
    statements = (
        f"create unique index {name} on {table.sql} ({key})",
        f"alter table {table.sql} replica identity using index {name}",
    )
    return _one("identity index", table, *statements, reason=IDENTITY)


def _to_longer_key(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """`n` belongs to the key too, then."""
    if table.unique != "primary" or table.identity != "default" or (table.listed and "n" not in table.listed):
        return []
    if table.longer:
        return []
    table.longer = True
    statements = (
        f"delete from {table.sql} where n is null",
        f"alter table {table.sql} drop constraint {table.name}_pkey, add primary key ({table.primary})",
    )
    return _one("primary key of more columns", table, *statements, reason=IDENTITY)


def _lose_identity(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """UPDATE and DELETE fail at the source, until it is given back."""
    if table.insert_only or table.partitioned or table.identity != "default" or table.unique != "primary":
        return []
    if dice.random() < 0.5:
        drop, add = f"drop constraint {table.name}_pkey", f"add primary key ({table.primary})"
        table.frozen = True
    else:
        drop, add = "replica identity nothing", "replica identity default"
    undo = f"alter table {table.sql} {add}"
    names = (table.name,)
    lost = Alter(drop, names, (f"alter table {table.sql} {drop}",), IDENTITY, IDENTITY, (undo,), breaks=True)
    back = Alter(add, names, (undo,), IDENTITY, IDENTITY, mends=True)
    return [(0, lost), (dice.randrange(1, 5), back)]


def _lose_key(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Rows are then known by all their values."""
    if table.identity != "full" or table.unique != "primary" or table.where:
        return []
    table.unique = "no"
    return _one("no primary key", table, f"alter table {table.sql} drop constraint {table.name}_pkey", reason=IDENTITY)


def _filters_others(table: Table) -> bool:
    return table.where is not None and table.where.startswith("n ")


# -- columns ----------------------------------------------------------------------------------------------------------


def _widen(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    possible = [column for column in table.drawable if column.sql in WIDER]
    if not possible:
        return []
    column = dice.choice(possible)
    column.sql = WIDER[column.sql]
    if column.sql in WIDE:
        column.values = (*column.values, *(WIDE[column.sql](dice) for _ in range(3)))
    reason = _reason(table, column.name)
    using = f" using {column.name}::text::jsonb" if column.sql == "jsonb" else ""
    return _one(
        "wider type", table, f"alter table {table.sql} alter {column.name} type {column.sql}{using}", reason=reason
    )


def _respell_type(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """All values are others, and the type is the same."""
    possible = [column for column in table.drawable if column.sql in ("text", "numeric", "bigint")]
    if not possible:
        return []
    column = dice.choice(possible)
    using = f"{column.name} || '!'" if column.sql == "text" else f"{column.name} * 0"
    statement = f"alter table {table.sql} alter {column.name} type {column.sql} using {using}"
    return _one("type by USING", table, statement, reason=REWRITTEN if _reason(table, column.name) else None)


def _add(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if table.listed:
        return []
    column = draw_column(dice, table.new_name(), scene.major)
    table.columns.append(column)
    default = dice.choice(["", " default null"])
    if column.sql in ("text", "uuid"):
        default = " default gen_random_uuid()"
    return _one(
        "column added", table, f"alter table {table.sql} add {column.name} {column.sql}{default}", reason=COLUMNS
    )


def _drop(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if len(table.drawable) < 2 or table.listed:
        return []
    column = dice.choice(table.drawable)
    table.columns.remove(column)
    return _one("column dropped", table, f"alter table {table.sql} drop {column.name}", reason=COLUMNS)


def _drop_and_add(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Of the same name, mostly of the same type."""
    if table.listed:
        return []
    at = dice.randrange(len(table.columns))
    old = table.columns[at]
    if old.generated:
        return []
    if dice.random() < 0.3:
        table.columns[at] = draw_column(dice, old.name, scene.major)
    table.columns.append(table.columns.pop(at))
    name, sql = old.name, table.columns[-1].sql
    return _one("column made anew", table, f"alter table {table.sql} drop {name}, add {name} {sql}", reason=COLUMNS)


def _rename(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if table.listed:
        return []
    column = dice.choice(table.columns)
    before, column.name = column.name, table.new_name()
    return _one("column renamed", table, f"alter table {table.sql} rename {before} to {column.name}", reason=COLUMNS)


def _exchange_names(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Two columns of one type: what is sent has the same names and types in another order, or none other at all."""
    twins = [
        (one, other)
        for one in table.drawable
        for other in table.drawable
        if one is not other and one.sql == other.sql and not table.listed
    ]
    if not twins:
        return []
    one, other = dice.choice(twins)
    moves = ((one.name, "elsewhere"), (other.name, one.name), ("elsewhere", other.name))
    statements = [f"alter table {table.sql} rename {name} to {to}" for name, to in moves]
    return _one("names exchanged", table, *statements, reason=COLUMNS)


def _reason(table: Table, column: str) -> str | None:
    return None if table.listed and column not in table.listed else COLUMNS


# -- types ------------------------------------------------------------------------------------------------------------


def _new_label(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    label = f"label {table.new_name()} of {table.name}"
    place = dice.choice(["", " before 'sad'"])
    users = _users(scene, "edges.mood")
    for one in scene.tables:
        for column in one.drawable:
            if column.sql == "edges.mood":
                column.values = (*column.values, f"'{label}'")
    statement = f"alter type edges.mood add value '{label}'{place}"
    return [(0, Alter("label added", users, (statement,), LABELS, alone=True))] if users else []


def _renamed_label(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    users = _users(scene, "mood")
    back = ("alter type edges.mood rename value 'sad again' to 'sad'",)
    there = ("alter type edges.mood rename value 'sad' to 'sad again'",)
    if not users:
        return []
    return [
        (0, Alter("label renamed", users, there, LABELS)),
        (dice.randrange(1, 6), Alter("label renamed back", users, back, LABELS)),
    ]


def _users(scene: Scene, name: str) -> tuple[str, ...]:
    """The tables with a column, or a key, of that type or made of it."""
    return tuple(
        table.name
        for table in scene.tables
        if any(name in sql for sql in (*(c.sql for c in table.columns), *(k.sql for k in table.key.kinds)))
    )


# -- tables and publications ------------------------------------------------------------------------------------------


def _recreate(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Dropped, or put aside; then created anew, with other rows."""
    if dice.random() < 0.7:
        away = [f"drop table {table.sql} cascade"]
    else:
        away = [f"drop schema if exists away{table.name} cascade", f"create schema away{table.name}"]
        away += [f"alter table {relation} set schema away{table.name}" for relation in table.relations]
    published = [] if scene.managed else [f"alter publication {scene.publication(table)} add table {table.member}"]
    table.longer = False
    statements = (*away, *table.create(), *published, table.fill(0, dice.choice([0, 50])))
    return _one("made anew", table, *statements, reason=GONE)


def _republish(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Taken out of the publication and put back, with transactions in between."""
    publication = scene.publication(table)
    drop, add = f"alter publication {publication} drop table {table.sql}", None
    add = f"alter publication {publication} add table {table.member}"
    names = (table.name,)
    out = Alter("taken out of the publication", names, (drop,), PUBLICATION, PUBLICATION, (add,))
    back = Alter("put back", names, (add,), PUBLICATION, PUBLICATION)
    return [(0, out), (dice.randrange(1, 4), back)]


def _narrow(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """What a publication sends is narrowed and widened again; at once, so that no look falls in between."""
    publication = scene.publication(table)
    actions = "insert, truncate" if table.insert_only else "insert, update, delete, truncate"
    tables = [one.name for one in scene.tables if one.insert_only == table.insert_only]
    tables += [] if table.insert_only else ["marker"]
    statements = (
        f"alter publication {publication} set (publish = 'insert')",
        f"delete from {table.sql} where n % 10 = 3",
        f"alter publication {publication} set (publish = '{actions}')",
    )
    return [(0, Alter("publication narrowed for a while", tuple(tables), statements, PUBLICATION, PUBLICATION))]


def _other_filter(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if scene.managed or table.frozen:
        return []
    filters = [one.format(k=f"k{at}") for at, kind in enumerate(table.key.kinds) for one in kind.filters]
    filters += ["n % 4 <> 1"] if table.identity == "full" else []
    others: list[str | None] = [one for one in (*filters, None) if one != table.where]
    table.where = dice.choice(others) if others else None
    publication = scene.publication(table)
    statements = (
        f"alter publication {publication} drop table {table.sql}",
        f"alter publication {publication} add table {table.member}",
    )
    return _one("other row filter", table, *statements, reason=PUBLICATION)


# -- partitions -------------------------------------------------------------------------------------------------------


def _new_partition(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Its replica identity is the default one, whatever the root's is."""
    if not table.partitioned or table.identity == "index" or any(5 in parts for parts in table.leaves.values()):
        return []
    leaf = f"{table.name}_{table.new_name()}"
    table.leaves[leaf] = (5,)
    statement = table.create_leaf(leaf, (5,))
    if table.identity != "full":
        return _one("new partition", table, statement)
    mend = f"alter table edges.{leaf} replica identity full"
    reason, names = rf"{IDENTITY}|partition", (table.name,)
    breaks = table.unique == "no" or _filters_others(table)
    made = Alter("new partition of a root with full", names, (statement,), reason, reason, (mend,), breaks=breaks)
    return [(0, made), (dice.randrange(1, 6), Alter("its identity", names, (mend,), reason, reason, mends=True))]


def _exchange_rows(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    """Rows go with a partition that is detached, and come back with it, some of them changed. Meanwhile it is a table
    of its own, which is declared with the others, and which a publication that is not ours does not contain."""
    if not table.partitioned:
        return []
    leaf = dice.choice(list(table.leaves))
    parts = ", ".join(map(str, table.leaves[leaf]))
    detach = f"alter table {table.sql} detach partition edges.{leaf}"
    meanwhile = f"delete from edges.{leaf} where n % 2 = 0"
    attach = f"alter table {table.sql} attach partition edges.{leaf} for values in ({parts})"
    alone = rf"{PARTITIONS}|does not contain edges.{leaf}"
    detached = Alter("partition detached", (table.name,), (detach,), PARTITIONS, alone, (attach,), reset=True)
    attached = Alter("attached again", (table.name,), (meanwhile, attach), PARTITIONS, PARTITIONS, reset=True)
    return [(0, detached), (dice.randrange(1, 5), attached)]


def _truncate_partition(dice: random.Random, table: Table, scene: Scene) -> Drawn:
    if not table.partitioned:
        return []
    leaf = dice.choice(list(table.leaves))
    truncated = Alter("partition truncated", (table.name,), (f"truncate edges.{leaf}",), PARTITIONS, reset=True)
    return [(0, truncated)]


_ALTERS: tuple[tuple[Draw, float], ...] = (
    (_maintain, 4), (_harmless, 5), (_again, 2), (_to_full, 2), (_to_default, 2), (_to_index, 2), (_to_longer_key, 1),
    (_lose_identity, 1), (_lose_key, 1), (_widen, 5), (_respell_type, 1), (_add, 2), (_drop, 1), (_drop_and_add, 3),
    (_rename, 1), (_exchange_names, 1), (_new_label, 1), (_renamed_label, 0.5), (_recreate, 2), (_republish, 2),
    (_narrow, 1),    (_other_filter, 3), (_new_partition, 4), (_exchange_rows, 2), (_truncate_partition, 1),
)  # fmt: skip
