"""A table as the generator knows it while it draws: drawn first, then altered by what is drawn later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.edges.values import KEY_KINDS, KINDS, SECOND_KEY_KINDS, KeyKind

Identity = Literal["default", "index", "full", "nothing"]
Unique = Literal["primary", "index", "no"]

ROWS = 150
# How many ints `part` of a partitioned table may be; for the last one there is no partition.
PARTS = 6


@dataclass
class Column:
    """A column that is not part of the key."""

    name: str
    sql: str
    values: tuple[str, ...]
    storage: str | None = None
    generated: bool = False


@dataclass
class Key:
    """The columns `k0`, `k1` by which rows are found, whether or not the source declares them as a key."""

    kinds: tuple[KeyKind, ...]
    partitioned: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"k{at}" for at in range(len(self.kinds))), *(("part",) if self.partitioned else ()))

    def values(self, n: str) -> tuple[str, ...]:
        """Of the row `n`, without `part`."""
        return tuple(kind.value.format(n=n) for kind in self.kinds)

    def assignments(self, n: str) -> str:
        return ", ".join(f"k{at} = {value}" for at, value in enumerate(self.values(n)))

    def condition(self, n: str) -> str:
        return " and ".join(f"k{at} = ({value})" for at, value in enumerate(self.values(n)))


@dataclass
class Table:
    """`unique`: whether the key is unique at the source. `leaves`: partitions by name, with the values of `part`.
    `longer`: `n` belongs to the primary key, too. `frozen`: nothing keeps rows from being twice, for a while."""

    name: str
    key: Key
    columns: list[Column]
    identity: Identity
    unique: Unique
    insert_only: bool = False
    where: str | None = None
    listed: tuple[str, ...] = ()
    leaves: dict[str, tuple[int, ...]] = field(default_factory=dict)
    full_leaves: tuple[str, ...] = ()
    longer: bool = False
    frozen: bool = False
    made: int = 0

    @property
    def sql(self) -> str:
        return f"edges.{self.name}"

    @property
    def partitioned(self) -> bool:
        return self.key.partitioned

    @property
    def relations(self) -> tuple[str, ...]:
        """The table, and its partitions."""
        return (self.sql, *(f"edges.{leaf}" for leaf in self.leaves))

    @property
    def primary(self) -> str:
        """The columns of the primary key."""
        return ", ".join((*self.key.names, *(("n",) if self.longer else ())))

    @property
    def member(self) -> str:
        """As CREATE and ALTER PUBLICATION name it."""
        columns = f" ({', '.join(self.listed)})" if self.listed else ""
        return self.sql + columns + (f" where ({self.where})" if self.where else "")

    @property
    def computes_unsent(self) -> bool:
        """Whether there is a virtual column, with which replica identity full makes UPDATE fail at the source."""
        return any(column.sql.endswith("virtual") for column in self.columns)

    @property
    def drawable(self) -> list[Column]:
        return [column for column in self.columns if not column.generated]

    def new_name(self) -> str:
        self.made += 1
        return f"a{self.made}"

    def create(self) -> list[str]:
        statements = [f"create table {self.sql} ({', '.join(self._definitions())}){self._partitioning()}"]
        for name, parts in self.leaves.items():
            statements.append(self.create_leaf(name, parts))
        keys = ", ".join(self.key.names)
        if self.unique == "primary":
            statements.append(f"alter table {self.sql} add primary key ({keys})")
        if self.unique == "index" or self.identity == "index":
            statements.append(f"create unique index {self.name}_key on {self.sql} ({keys})")
        statements += self._storages()
        statements += [f"alter table edges.{leaf} replica identity full" for leaf in self.full_leaves]
        if self.identity == "index":
            statements.append(f"alter table {self.sql} replica identity using index {self.name}_key")
        elif self.identity == "full":
            statements += self.full()
        return statements

    def full(self) -> list[str]:
        return [f"alter table {relation} replica identity full" for relation in self.relations]

    def create_leaf(self, name: str, parts: Sequence[int]) -> str:
        return f"create table edges.{name} partition of {self.sql} for values in ({', '.join(map(str, parts))})"

    def fill(self, first: int, last: int) -> str:
        return self.insert(
            first, last, {column.name: f"({column.values[0]})::{column.sql}" for column in self.drawable}
        )

    def insert(self, first: int, last: int, values: dict[str, str]) -> str:
        names = ["n", *self.key.names, *values]
        part = ["n % 5"] if self.partitioned else []
        expressions = ["n", *self.key.values("n"), *part, *values.values()]
        conflict = "" if self.unique == "no" else " on conflict do nothing"
        series = f"generate_series({first}, {last}) as g (n)"
        return f"insert into {self.sql} ({', '.join(names)}) select {', '.join(expressions)} from {series}{conflict}"

    def _definitions(self) -> list[str]:
        keys = [f"k{at} {kind.sql} not null" for at, kind in enumerate(self.key.kinds)]
        part = ["part smallint not null"] if self.partitioned else []
        columns = [f"{column.name} {column.sql}" for column in self.columns]
        return ["n integer", *keys, *part, *columns]

    def _partitioning(self) -> str:
        return " partition by list (part)" if self.partitioned else ""

    def _storages(self) -> list[str]:
        keys = [(f"k{at}", "external") for at, kind in enumerate(self.key.kinds) if kind.external]
        columns = [(column.name, column.storage) for column in self.columns if column.storage]
        return [
            f"alter table {relation} alter {name} set storage {storage}"
            for relation in self.relations
            for name, storage in (*keys, *columns)
        ]


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw_table(dice: random.Random, number: int, major: int, managed: bool) -> Table:
    """`managed`: whether pgetl makes the publication."""
    partitioned = dice.random() < 0.25
    key = _draw_key(dice, partitioned)
    columns = [draw_column(dice, f"v{at}", major) for at in range(dice.choice([1, 2, 3, 5]))]
    unique, identity = dice.choice(_IDENTITIES)
    insert_only = managed and dice.random() < 0.1
    if insert_only:
        unique, identity = dice.choice(_INSERT_ONLY)
    if partitioned and (unique == "index" or identity == "index"):
        unique, identity = "primary", "default"
    table = Table(f"t{number}", key, columns, identity, unique, insert_only)
    if dice.random() < 0.2:
        kind = dice.choice(["stored", "virtual"]) if major >= 18 and identity != "full" else "stored"
        table.columns.append(Column("g", f"bigint generated always as (n * 2) {kind}", (), None, True))
    _draw_publication(dice, table)
    if partitioned:
        _draw_leaves(dice, table)
    return table


_IDENTITIES: tuple[tuple[Unique, Identity], ...] = (
    ("primary", "default"),
    ("primary", "default"),
    ("primary", "default"),
    ("index", "index"),
    ("primary", "full"),
    ("no", "full"),
)
_INSERT_ONLY: tuple[tuple[Unique, Identity], ...] = (("primary", "default"), ("no", "default"))


def _draw_key(dice: random.Random, partitioned: bool) -> Key:
    kinds = [dice.choice(KEY_KINDS)]
    if dice.random() < 0.5:
        kinds.append(dice.choice(SECOND_KEY_KINDS))
    return Key(tuple(kinds), partitioned)


def draw_column(dice: random.Random, name: str, major: int) -> Column:
    kind = dice.choice([kind for kind in KINDS if kind.since <= major])
    values = tuple(dict.fromkeys(kind.draw(dice) for _ in range(4)))
    return Column(name, kind.sql, values, _draw_storage(dice, kind.sql))


def _draw_storage(dice: random.Random, sql: str) -> str | None:
    if sql in ("text", "bytea", "edges.code"):
        return dice.choice([None, "external", "external", "extended", "main"])
    return None


def _draw_leaves(dice: random.Random, table: Table) -> None:
    table.leaves = {f"{table.name}_a": (0, 1), f"{table.name}_b": (2,), f"{table.name}_c": (3, 4)}
    may_be_full = table.identity == "default" and not table.listed and not table.computes_unsent
    if may_be_full and dice.random() < 0.4:
        table.full_leaves = (f"{table.name}_b",)


def _draw_publication(dice: random.Random, table: Table) -> None:
    """A row filter, a column list. Unless only inserts are sent, Postgres wants the key's columns in both."""
    if dice.random() < 0.35:
        filters = [one.format(k=f"k{at}") for at, kind in enumerate(table.key.kinds) for one in kind.filters]
        if table.identity == "full" or table.insert_only:
            filters += ["n % 3 <> 0", "n > 40"]
        if filters:
            table.where = dice.choice(filters)
    if table.identity != "full" and dice.random() < 0.2 and table.unique != "no":
        names = ["n", *table.key.names, *(column.name for column in table.drawable)]
        names.remove(dice.choice(["n", *(column.name for column in table.drawable)]))
        table.listed = tuple(names)
