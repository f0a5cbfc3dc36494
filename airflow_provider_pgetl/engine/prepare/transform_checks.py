"""Checks whether the rules of a pipeline fit the tables of the source: before any work, and in `pgetl check`.

An error about a table that was copied already is only a warning here: the pipeline goes on without the table, which its
stream makes Errored before a value of it passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.config.families import family_of, integer_bits
from airflow_provider_pgetl.engine.config.spec import PipelineSpec, TransformSpec
from airflow_provider_pgetl.engine.config.transformers import Keep
from airflow_provider_pgetl.engine.config.validation import suggestion
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
from airflow_provider_pgetl.engine.model.phases import past_init
from airflow_provider_pgetl.engine.model.tables import Column, Pattern, TableName, TableSchema
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.matching import Candidate


def inspect_rules(context: PipelineContext, connection: Connection, candidates: Sequence[Candidate]) -> list[Finding]:
    """Returns what is wrong with the rules."""
    if context.transforms is None:
        return []
    spec = context.transforms.spec
    schemas = preflight.declared_schemas(connection, spec, candidates)
    found = [*_misfits(context, schemas), *_idle(spec, schemas)]
    unique = _read_unique(connection, schemas)
    found += [finding for one in unique for finding in _losses(spec, schemas[one.table], one)]
    links = _read_links(connection, schemas)
    return [*_softened(context, found), *(finding for one in links for finding in _parted(spec, schemas, one))]


def _softened(context: PipelineContext, found: Sequence[Finding]) -> Iterator[Finding]:
    context.store.load()
    copied = {str(table) for table, record in context.store.tables().items() if past_init(record.state)}
    for finding in found:
        kind = ErrorKind.TRANSFORM if finding.table in copied else ErrorKind.CONFIG
        yield replace(finding, kind=kind, severity="warning" if finding.table in copied else finding.severity)


def _misfits(context: PipelineContext, schemas: Mapping[TableName, TableSchema]) -> Iterator[Finding]:
    for table, schema in schemas.items():
        try:
            if context.transforms is not None:
                context.transforms.of(table, schema)
        except PgetlError as error:
            yield replace(Finding.of(error), table=str(table))


def _idle(spec: PipelineSpec, schemas: Mapping[TableName, TableSchema]) -> Iterator[Finding]:
    """Yields findings for rules that cover nothing, or nothing that an earlier rule does not cover: a misspelled name,
    or a rule in the wrong place, must not let a column pass."""
    for rule in spec.rules:
        tables = {table: schema for table, schema in schemas.items() if rule.covers(table)}
        if any(spec.rule_for(table, name) is rule for table, schema in tables.items() for name in schema.names):
            continue
        known = sorted({name for schema in tables.values() for name in schema.names})
        covers = any(rule.applies(name) for name in known)
        what = "never holds, as an earlier one covers its columns" if covers else "covers no column"
        problem = f'The rule "{rule.use}" for {rule.column} of {rule.table} {what}'
        remedy = "Put it before the other, or take it out." if covers else "Correct it, or take it out."
        if not tables:
            yield Finding(f"{problem}: no such table is replicated.", remedy)
        elif "*" in rule.column or Pattern.parse(rule.table).wildcard:
            yield Finding(problem + ("." if covers else suggestion(rule.column, known)), remedy, "warning")
        else:
            place = str(next(iter(tables)))
            yield Finding(problem + ("." if covers else suggestion(rule.column, known)), remedy, table=place)


# -- unique indexes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    table: TableName
    name: str
    columns: tuple[str, ...]


# The columns of an index, of its expressions and of its condition. Those of a constraint's index depend on the
# constraint instead.
_UNIQUE = """
    SELECT n.nspname::text, c.relname::text, x.relname::text,
           array_agg(DISTINCT a.attname::text ORDER BY a.attname::text)
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND (
        a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        OR EXISTS (
            SELECT FROM pg_catalog.pg_depend AS d
            WHERE i.indexprs IS NOT NULL
              AND d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid
              AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = i.indrelid
              AND d.refobjsubid = a.attnum
        )
    )
    WHERE i.indisunique AND i.indisvalid AND i.indrelid = ANY (%s)
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def _read_unique(connection: Connection, schemas: Mapping[TableName, TableSchema]) -> list[UniqueIndex]:
    oids = [schema.relation for schema in schemas.values()]
    with server_errors("The unique indexes could not be read"):
        rows = connection.execute(_UNIQUE, [oids]).fetchall()
    return [UniqueIndex(TableName(row[0], row[1]), row[2], tuple(row[3])) for row in rows]


def _losses(spec: PipelineSpec, schema: TableSchema, index: UniqueIndex) -> Iterator[Finding]:
    """Yields the columns of a unique index whose values would not stay distinct. Those of the key are refused by the
    rules themselves."""
    columns = {column.name: column for column in schema.columns}
    for name in index.columns:
        rule = spec.rule_for(index.table, name)
        if rule is None or name not in columns or name in schema.key or rule.allow_uniqueness_loss:
            continue
        if not rule.transformer.keeps_unique(columns[name]):
            yield Finding(
                f'"{rule.use}" does not keep the values of {name} distinct, which the unique index {index.name} of '
                f"{index.table} has them be.",
                "Use another transformer (hash, integer, uuid, email, encrypt), or allow_uniqueness_loss = true.",
                table=str(index.table),
            )


# -- foreign keys -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Link:
    """A column that references another one."""

    table: TableName
    column: str
    other_table: TableName
    other: str


_LINKS = """
    SELECT n.nspname::text, c.relname::text, a.attname::text, fn.nspname::text, f.relname::text, b.attname::text
    FROM pg_catalog.pg_constraint AS k
    CROSS JOIN LATERAL unnest(k.conkey, k.confkey) AS pair (here, there)
    JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = pair.here
    JOIN pg_catalog.pg_class AS f ON f.oid = k.confrelid
    JOIN pg_catalog.pg_namespace AS fn ON fn.oid = f.relnamespace
    JOIN pg_catalog.pg_attribute AS b ON b.attrelid = f.oid AND b.attnum = pair.there
    WHERE k.contype = 'f' AND k.conrelid = ANY (%s) AND k.confrelid = ANY (%s)
    ORDER BY 1, 2, 3
"""


def _read_links(connection: Connection, schemas: Mapping[TableName, TableSchema]) -> list[Link]:
    oids = [schema.relation for schema in schemas.values()]
    with server_errors("The foreign keys could not be read"):
        rows = connection.execute(_LINKS, [oids, oids]).fetchall()
    return [Link(TableName(row[0], row[1]), row[2], TableName(row[3], row[4]), row[5]) for row in rows]


def _parted(spec: PipelineSpec, schemas: Mapping[TableName, TableSchema], link: Link) -> Iterator[Finding]:
    """Yields a warning for a reference whose two ends would not have equal values any more."""
    here = _effect(spec, schemas[link.table].columns, link.table, link.column)
    there = _effect(spec, schemas[link.other_table].columns, link.other_table, link.other)
    if here != there:
        problem = (
            f"{link.column} of {link.table} references {link.other} of {link.other_table}, and they are transformed "
            "differently: in the destination they cannot be joined."
        )
        yield Finding(problem, "Give both the same rule.", "warning", table=str(link.table))


def _effect(spec: PipelineSpec, columns: Collection[Column], table: TableName, name: str) -> object:
    """Returns what decides which output a value has."""
    rule = spec.rule_for(table, name)
    column = next((one for one in columns if one.name == name), None)
    if rule is None or isinstance(rule.transformer, Keep) or column is None:
        return None
    bits = integer_bits(column) if family_of(column) == "integer" else 0
    return _plainly(spec, rule), bits


def _plainly(spec: PipelineSpec, rule: TransformSpec) -> object:
    return rule.use, dict(rule.options), spec.key_of(rule) if rule.transformer.is_keyed else None
