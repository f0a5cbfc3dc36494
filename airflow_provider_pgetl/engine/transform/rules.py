"""Rules: which columns of a table are transformed by what. Pure, and without secrets.

`rules_of` finds the rules of a table under one version of its schema, or raises what is wrong with them: an unknown
column that a transformer reads, a type that does not fit, a key whose values would not stay distinct, in strict mode a
column without a rule. Copy and stream call it before they touch a value, with the schema that they use, so that a rule
that has ceased to fit stops the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.changes.versions import alterations
from airflow_provider_pgetl.engine.config.spec import PipelineSpec, TransformSpec
from airflow_provider_pgetl.engine.config.transformers import Keep, Transformer
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema, written
from airflow_provider_pgetl.engine.transform.invented import stamp
from airflow_provider_pgetl.engine.transform.keyed import Keys


@dataclass(frozen=True)
class ColumnRule:
    """The rule of one column. `key` refers to the key; None if none is needed. `stamp` identifies what a library
    contributes."""

    table: TableName
    index: int
    column: Column
    transformer: Transformer
    key: str | None
    null_on_error: bool
    stamp: str = ""

    @property
    def use(self) -> str:
        return getattr(self.transformer, "path", self.transformer.use)


@dataclass(frozen=True)
class TableRules:
    """The rules of one table under `schema`, the source's names."""

    schema: TableSchema
    columns: tuple[ColumnRule, ...]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(rule.key for rule in self.columns if rule.key is not None)


def rules_of(spec: PipelineSpec, table: TableName, schema: TableSchema) -> TableRules | None:
    """Returns the rules of the table `table` of the source under this schema; None if no column is transformed."""
    if not spec.transforms:
        return None
    found = []
    for index, column in enumerate(schema.columns):
        rule = spec.rule_for(table, column.name)
        if rule is None:
            _expect_none_needed(spec, table, schema, column)
        elif not isinstance(rule.transformer, Keep):
            found.append(_column_rule(spec, table, schema, index, rule))
    return TableRules(schema, tuple(found)) if found else None


def _column_rule(
    spec: PipelineSpec, table: TableName, schema: TableSchema, index: int, rule: TransformSpec
) -> ColumnRule:
    column, made = schema.columns[index], rule.transformer
    if why := misfit(schema, column, rule, made):
        message = f'Column {column.name} of {table} cannot be transformed by "{rule.use}": {why}.'
        raise PgetlError(ErrorKind.TRANSFORM, message, remedy=CORRECT, table=str(schema.table))
    key = spec.key_of(rule) if made.is_keyed or rule.use.count(":") else None
    return ColumnRule(schema.table, index, column, made, key, rule.on_error == "null", stamp(made))


CORRECT = "Correct the rule, or give the column another one; `pgetl check FILE` says whether it fits."


def misfit(schema: TableSchema, column: Column, rule: TransformSpec, made: Transformer) -> str | None:
    """Returns why the rule does not fit the column, as a part of a sentence."""
    if (why := made.misfit(column)) is not None:
        return why
    if lacking := [name for name in made.reads if name not in schema.names]:
        return f"there is no column {lacking[0]}"
    if rule.on_error == "null" and column.not_null:
        return 'with on_error = "null" it must be nullable'
    if column.name not in schema.key:
        return None
    if not made.keeps_unique(column):
        return "rows are identified by it, and its values would not stay distinct"
    if rule.on_error == "null":
        return 'rows are identified by it, which excludes on_error = "null"'
    if others := [name for name in made.reads if name not in schema.key]:
        return f"rows are identified by it, and {others[0]} is not sent with every change"
    return None


def _expect_none_needed(spec: PipelineSpec, table: TableName, schema: TableSchema, column: Column) -> None:
    if spec.transformation.mode == "strict":
        message = f'Column {column.name} of {table} has no rule, and mode = "strict" lets nothing pass without one.'
        remedy = 'Add a [[transform]] for it, with use = "keep" if it may pass as it is; then roll the table back.'
        raise PgetlError(ErrorKind.TRANSFORM, message, remedy=remedy, table=str(schema.table))


def expect_like_before(spec: PipelineSpec, table: TableName, before: TableSchema, after: TableSchema) -> None:
    """Raises if values of a column would be transformed otherwise than those that were written before it was altered:
    rows with the former ones could not be found, or values would pass because the name of their column is another."""
    found = alterations(before, after)
    for was, column in found.renamed:
        if _effect(spec, table, was.name) != _effect(spec, table, column.name):
            message = f"{was.name} of {table} was renamed to {column.name}, for which there is not the same rule."
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=COPY_AGAIN, table=str(after.table))
    for was, column in found.retyped:
        rule = spec.rule_for(table, column.name)
        if rule is not None and not isinstance(rule.transformer, Keep):
            message = (
                f"{column.name} of {table} was altered from {was.sql_type} to {column.sql_type}, and is transformed."
            )
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=COPY_AGAIN, table=str(after.table))


def expect_covered(spec: PipelineSpec, table: TableName, before: TableSchema | None, schema: TableSchema) -> None:
    """Raises if a copy would let values pass that were transformed before, or that are to be: because the column of a
    rule is not there, or was renamed to a name without a rule. `before`: the last known version of the table."""
    for rule in spec.rules:
        if rule.table == written(table) and "*" not in rule.column and rule.column not in schema.names:
            message = f'{table} has no column {rule.column}, for which there is the rule "{rule.use}".'
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=COPY_AGAIN, table=str(table))
    if before is None or before.relation != schema.relation:
        return
    for was, column in alterations(before, schema).renamed:
        if _effect(spec, table, was.name) is not None and spec.rule_for(table, column.name) is None:
            message = f"{was.name} of {table} was renamed to {column.name}, for which there is no rule."
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=COPY_AGAIN, table=str(table))


COPY_AGAIN = "See to its rule, then copy the table again: `pgetl reset FILE TABLE`."


def _effect(spec: PipelineSpec, table: TableName, column: str) -> object:
    """Returns what decides which output a value has."""
    rule = spec.rule_for(table, column)
    if rule is None or isinstance(rule.transformer, Keep):
        return None
    return rule.use, dict(rule.options), spec.key_of(rule), rule.on_error


def uses_of(spec: PipelineSpec, table: TableName) -> Mapping[str, str]:
    """Returns the columns, or patterns of columns, of the table for which there are rules, with the transformers, in
    the order in which they hold."""
    found: dict[str, str] = {}
    for rule in spec.rules:
        if rule.covers(table):
            found.setdefault(rule.column, rule.use)
    return found


# -- What is compared to see whether a table has to be copied again. ---------------------------------------------------


def fingerprint(spec: PipelineSpec, table: TableName, keys: Keys) -> str:
    """Returns what differs where the rules for a table, or their keys, differ; empty where there are none. It does not
    depend on the columns that the table has: a column that is added later has always had its rule."""
    relevant = [rule for rule in spec.rules if rule.covers(table)]
    if not relevant:
        return ""
    text = json.dumps([_identity(spec, rule, keys) for rule in relevant], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _identity(spec: PipelineSpec, rule: TransformSpec, keys: Keys) -> Sequence[object]:
    made, reference = rule.transformer, spec.key_of(rule)
    keyed = made.is_keyed and reference is not None
    key = keys[reference].fingerprint if keyed and reference is not None else ""
    return [rule.column, rule.use, dict(rule.options), rule.on_error, key, stamp(made)]
