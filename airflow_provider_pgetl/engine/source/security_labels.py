"""Rules that the labels of PostgreSQL Anonymizer on columns of the source stand for (`config.security_labels`)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from airflow_provider_pgetl.engine.config.security_labels import rule_of
from airflow_provider_pgetl.engine.config.spec import PipelineSpec, TransformSpec
from airflow_provider_pgetl.engine.model.tables import TableName, quote_identifier
from airflow_provider_pgetl.engine.source.connecting import connect, server_errors, worker_name

_LABELS = """
    SELECT n.nspname::text, c.relname::text, a.attname::text, l.label
    FROM pg_catalog.pg_seclabel AS l
    JOIN pg_catalog.pg_class AS c ON c.oid = l.objoid AND l.classoid = 'pg_catalog.pg_class'::regclass
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = l.objsubid AND NOT a.attisdropped
    WHERE l.provider = 'anon' AND l.objsubid > 0
    ORDER BY 1, 2, 3
"""


def with_labelled_rules(spec: PipelineSpec, uri: str) -> PipelineSpec:
    """Returns the specification with a rule for each labelled column of the pipeline's tables, after all declared
    rules; unchanged unless it asks for them. Raises for a label without a counterpart, unless a declared rule covers
    its column."""
    if not spec.transformation.infer_from_security_labels:
        return spec
    with (
        closing(connect(uri, worker_name(spec.id, "labels"))) as connection,
        server_errors("The security labels could not be read"),
    ):
        rows = connection.execute(_LABELS).fetchall()
    found = []
    for schema, name, column, label in rows:
        table = TableName(schema, name)
        if not any(one.pattern.matches(table) for one in spec.tables):
            continue
        if any(rule.covers(table) and rule.applies(column) for rule in spec.rules):
            continue
        use, options = rule_of(str(table), column, label)
        pattern = f"{quote_identifier(schema)}.{quote_identifier(name)}"
        found.append(TransformSpec(column, use, pattern, options))
    return replace(spec, transform=(*spec.transform, *found))
