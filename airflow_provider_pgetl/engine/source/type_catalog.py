"""Types of the source, resolved down to what they are made of.

Types are read level by level: a domain's base, an array's element, a range's subtype, a composite's fields. The levels
end, because Postgres lets no type contain itself. Names come from format_type() under a search path of pg_catalog, so
that only built-in types are unqualified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.tables import PgType, TypeKind

_KINDS: Mapping[str, TypeKind] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "r": "range",
    "m": "multirange",
    "p": "base",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A type used inside another: which, and how it is spelled there."""

    oid: int
    sql_type: str


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A type as the catalog holds it, parts by reference."""

    type: PgType
    inner: _Part | None
    fields: tuple[tuple[str, _Part], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        inner = (self.inner.oid,) if self.inner else ()
        return inner + tuple(part.oid for _, part in self.fields)


def read_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, PgType]:
    """The types with these OIDs, whole."""
    rows: dict[int, _TypeRow] = {}
    wanted = frozenset(oids)
    with server_errors("Types could not be read"):
        while wanted:
            found = [_row(*fetched) for fetched in connection.execute(_TYPES, [list(wanted)])]
            rows |= {row.type.oid: row for row in found}
            wanted = frozenset(part for row in found for part in row.parts) - rows.keys()
    known: dict[int, PgType] = {}
    for oid in rows:
        _assemble(oid, rows, known)
    return known


def _row(
    oid: int,
    name: str,
    kind: str,
    is_array: bool,
    sendable: bool,
    extension: str | None,
    inner: int | None,
    inner_sql: str | None,
    labels: list[str],
    fields: list[tuple[str, int, str]],
    numbers: list[int],
    since: int,
) -> _TypeRow:
    pg_type = PgType(
        oid,
        name,
        "array" if is_array else _KINDS[kind],
        labels=tuple(labels),
        extension=extension,
        sendable=sendable,
        numbers=tuple(numbers),
        since=since,
    )
    part = _Part(inner, inner_sql or "") if inner else None
    return _TypeRow(pg_type, part, tuple((field, _Part(of, sql)) for field, of, sql in fields))


def _assemble(oid: int, rows: Mapping[int, _TypeRow], known: dict[int, PgType]) -> PgType:
    if oid in known:
        return known[oid]
    row = rows[oid]
    inner = _used(row.inner, rows, known) if row.inner else None
    fields = tuple((name, _used(part, rows, known)) for name, part in row.fields)
    parts = [*([inner] if inner else []), *(part for _, part in fields)]
    sendable = row.type.sendable and all(part.sendable for part in parts)
    known[oid] = replace(row.type, inner=inner, fields=fields, sendable=sendable)
    return known[oid]


def _used(part: _Part, rows: Mapping[int, _TypeRow], known: dict[int, PgType]) -> PgType:
    """The part's type; with its spelling where that says more than the name, as ``numeric(10,2)`` does."""
    pg_type = _assemble(part.oid, rows, known)
    return pg_type if part.sql_type == pg_type.name else replace(pg_type, sql_type=part.sql_type)


# A type is an array if it is *the* array type of its element: int2vector and point have elements, too. The binary form
# of an empty int2vector or oidvector is refused by its own input function. An interval may be infinite since 17; before
# that, the same bytes were so many years.
_TYPES = """
select t.oid, format_type(t.oid, -1), t.typtype::text, e.oid is not null,
       t.typsend <> 0 and t.oid not in ('int2vector'::regtype, 'oidvector'::regtype), x.extname::text,
       coalesce(e.oid, nullif(t.typbasetype, 0), r.rngsubtype),
       format_type(coalesce(e.oid, nullif(t.typbasetype, 0), r.rngsubtype),
                   case when t.typtype = 'd' then t.typtypmod else -1 end),
       array(select l.enumlabel::text from pg_enum l where l.enumtypid = t.oid order by l.enumsortorder),
       coalesce((select jsonb_agg(jsonb_build_array(a.attname, a.atttypid::int8, format_type(a.atttypid, a.atttypmod))
                                  order by a.attnum)
                 from pg_attribute a
                 where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped),
                '[]'),
       case t.typtype
       when 'e' then array(select l.oid::int8 from pg_enum l where l.enumtypid = t.oid order by l.enumsortorder)
       else array(select a.attnum::int8 from pg_attribute a
                  where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
                  order by a.attnum) end,
       case when t.oid = 'interval'::regtype and current_setting('server_version_num')::int >= 170000
            then 17 else 0 end
from pg_type t
left join pg_type e on e.oid = t.typelem and e.typarray = t.oid
left join pg_range r on t.oid in (r.rngtypid, r.rngmultitypid)
left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
                     and d.refclassid = 'pg_extension'::regclass
left join pg_extension x on x.oid = d.refobjid
where t.oid = any(%s::oid[])
"""
