"""Transactions: drawn INSERTs, UPDATEs, DELETEs and TRUNCATEs, some of them in subtransactions that are taken back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.edges.tables import PARTS, ROWS, Table

Deed = Callable[[random.Random, Table], list[str]]
_ELSEWHERE = 1_000_000


def draw_transaction(dice: random.Random, tables: Sequence[Table]) -> list[str]:
    """Its statements, without BEGIN and COMMIT."""
    statements: list[str] = []
    for _ in range(dice.choice([1, 1, 2, 3, 6])):
        table = dice.choice(tables)
        deeds = _FROZEN if table.frozen else _INSERTS if table.insert_only else _DEEDS
        deed = dice.choices([deed for deed, _ in deeds], [weight for _, weight in deeds])[0]
        statements += _perhaps_taken_back(dice, deed(dice, table))
    return statements


def _perhaps_taken_back(dice: random.Random, statements: list[str]) -> list[str]:
    luck = dice.random()
    if luck > 0.2:
        return statements
    end = "rollback to savepoint s" if luck < 0.1 else "release savepoint s"
    return ["savepoint s", *statements, end]


def _insert(dice: random.Random, table: Table) -> list[str]:
    first = dice.randrange(2 * ROWS)
    last = first + dice.choice([0, 0, 3, 60]) - 1 + dice.randrange(1, 3)
    return [table.insert(first, last, _values(dice, table, len(table.drawable)))]


def _update(dice: random.Random, table: Table) -> list[str]:
    """Some columns; values that are large and not among them are not sent."""
    values = _values(dice, table, dice.randrange(len(table.drawable) + 1))
    changes = [f"{name} = {expression}" for name, expression in values.items()] or ["n = n"]
    return [f"update {table.sql} set {', '.join(changes)} where {_some(dice)}"]


def _update_all(dice: random.Random, table: Table) -> list[str]:
    return [f"update {table.sql} set n = n where n >= {dice.randrange(30)}"]


def _renumber(dice: random.Random, table: Table) -> list[str]:
    return [f"update {table.sql} set n = n + 1 where {_some(dice)}"]


def _move(dice: random.Random, table: Table) -> list[str]:
    """Rows get other keys; with a filter on the key, some come in by that and some go out."""
    by = dice.choice([1, 7, ROWS])
    renumbered = f", n = n + {by}" if dice.random() < 0.5 else ""
    return [f"update {table.sql} set {table.key.assignments(f'n + {by}')}{renumbered} where {_some(dice)}"]


def _move_second(dice: random.Random, table: Table) -> list[str]:
    if len(table.key.kinds) < 2:
        return _move(dice, table)
    value = table.key.kinds[1].value.format(n=f"n + {dice.randrange(1, 4)}")
    return [f"update {table.sql} set k1 = {value} where {_some(dice)}"]


def _swap(dice: random.Random, table: Table) -> list[str]:
    """Two rows exchange their keys."""
    one, other = dice.randrange(ROWS), dice.randrange(ROWS)
    moves = ((one, _ELSEWHERE), (other, one), (_ELSEWHERE, other))
    return [_moved(table, at, to) for at, to in moves]


def _shift(dice: random.Random, table: Table) -> list[str]:
    """A chain of moves, each to where the one before it was."""
    first = dice.randrange(ROWS)
    return [_moved(table, n, n + 1) for n in range(first + 4, first - 1, -1)]


def _moved(table: Table, at: int, to: int) -> str:
    return f"update {table.sql} set {table.key.assignments(str(to))} where {table.key.condition(str(at))}"


def _respell(dice: random.Random, table: Table) -> list[str]:
    """Keys that are equal and not the same."""
    kind = table.key.kinds[0]
    if kind.respelled is None:
        return _update(dice, table)
    return [f"update {table.sql} set k0 = {kind.respelled.format(k='k0')} where {_some(dice)}"]


def _move_part(dice: random.Random, table: Table) -> list[str]:
    if not table.partitioned:
        return _move(dice, table)
    return [f"update {table.sql} set part = {dice.randrange(PARTS)} where {_some(dice)}"]


def _delete(dice: random.Random, table: Table) -> list[str]:
    return [f"delete from {table.sql} where {_some(dice)}"]


def _replace(dice: random.Random, table: Table) -> list[str]:
    """Rows go, and others come under their keys."""
    first = dice.randrange(ROWS)
    values = _values(dice, table, len(table.drawable))
    return [
        f"delete from {table.sql} where n between {first} and {first + 5}",
        table.insert(first, first + 5, values),
    ]


def _one_of_several(dice: random.Random, table: Table) -> list[str]:
    """By its place: one of several rows that may be the same."""
    if table.partitioned:
        return _delete(dice, table)
    place = f"(select ctid from {table.sql} order by n, ctid offset {dice.randrange(ROWS)} limit 1)"
    if dice.random() < 0.5:
        return [f"delete from {table.sql} where ctid = {place}"]
    values = _values(dice, table, 1)
    changes = ", ".join(f"{name} = {expression}" for name, expression in values.items()) or "n = n + 1"
    return [f"update {table.sql} set {changes} where ctid = {place}"]


def _truncate(dice: random.Random, table: Table) -> list[str]:
    again = [table.insert(0, dice.choice([5, ROWS]), _values(dice, table, len(table.drawable)))]
    return [f"truncate {table.sql}", *(again if dice.random() < 0.8 else [])]


_INSERTS: tuple[tuple[Deed, float], ...] = ((_insert, 10), (_truncate, 0.3))
# While there is no key that would keep rows from being twice.
_FROZEN: tuple[tuple[Deed, float], ...] = ((_update, 3), (_delete, 1))
_DEEDS: tuple[tuple[Deed, float], ...] = (
    (_insert, 8), (_update, 10), (_update_all, 1), (_renumber, 1), (_move, 4), (_move_second, 3), (_swap, 3),
    (_shift, 2), (_respell, 1), (_move_part, 2), (_delete, 3), (_replace, 3), (_one_of_several, 3), (_truncate, 0.3),
)  # fmt: skip


def _some(dice: random.Random) -> str:
    first = dice.randrange(ROWS)
    return f"n between {first} and {first + dice.choice([0, 2, 10, 50])}"


def _values(dice: random.Random, table: Table, count: int) -> dict[str, str]:
    """Expressions for so many columns, now and then NULL."""
    columns = dice.sample(table.drawable, count)
    return {
        column.name: "null" if dice.random() < 0.12 else _cast(dice.choice(column.values), column.sql)
        for column in columns
    }


def _cast(expression: str, sql: str) -> str:
    return f"({expression})::{sql}"
