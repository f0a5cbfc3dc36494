"""The transformation of one column: from the texts of its values to other texts.

This is the one place in which values are replaced. The copy path, the stream path, `verify` and the preview all call
`ColumnTransform`, with Arrow arrays of what the type's output function writes. So what comes out depends on nothing but
the value, the rule and the key.

Fail closed: whatever goes wrong becomes a `PgetlError` of kind TRANSFORM, which stops the table. Its message names the
column, the transformer, the kind of the exception, and the place in the code; never the exception's own words, which
may quote the value.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.config import transformers as declared
from airflow_provider_pgetl.engine.config.transformers import Transformer, is_padded, longest
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column
from airflow_provider_pgetl.engine.transform import documents, invented, moments, numbers, texts
from airflow_provider_pgetl.engine.transform.documents import applied
from airflow_provider_pgetl.engine.transform.keyed import Key
from airflow_provider_pgetl.engine.transform.rules import ColumnRule
from airflow_provider_pgetl.engine.transform.texts import Function

_MAKERS: Mapping[type[Transformer], Callable[..., Function]] = {
    declared.Hash: texts.hashed,
    declared.Mask: texts.masked,
    declared.Email: texts.email,
    declared.Phone: texts.phone,
    declared.String: texts.any_string,
    declared.Uuid: texts.any_uuid,
    declared.Choice: texts.chosen,
    declared.Ip: texts.network,
    declared.Encrypt: texts.encrypted,
    declared.FirstName: invented.invented,
    declared.LastName: invented.invented,
    declared.FullName: invented.invented,
    declared.Company: invented.invented,
    declared.Address: invented.invented,
    declared.Integer: numbers.integer,
    declared.Float: numbers.real,
    declared.Boolean: numbers.boolean,
    declared.Custom: documents.custom,
}
_DOCUMENTS: Mapping[type[Transformer], Callable[..., Function]] = {
    declared.Json: documents.json_documents,
    declared.Hstore: documents.hstores,
}

Others = Callable[[str], pa.Array]
"""Returns the values, before any transformation, of another column of the same rows."""


def function_of(given: Transformer, column: Column, key: Key | None) -> Function:
    """Returns the function from distinct values of the column to others, for a transformer of values alone."""
    if isinstance(given, declared.Constant):
        return lambda values: pa.repeat(pa.scalar(given.value, pa.large_string()), len(values))
    if isinstance(given, declared.Keep):
        return lambda values: values
    if isinstance(given, declared.Null):
        return lambda values: pa.nulls(len(values), pa.large_string())
    if isinstance(given, declared.Date | declared.Timestamp):
        return lambda values: moments.moved(given, column, key, values, values)
    if (document := _DOCUMENTS.get(type(given))) is not None:
        return document(given, column, key, function_of)
    return _MAKERS[type(given)](given, column, key)


class ColumnTransform:
    """Transforms the values of one column."""

    def __init__(self, rule: ColumnRule, key: Key | None) -> None:
        self.rule = rule
        self._given = rule.transformer
        self._column = rule.column
        self._key = key
        self._limit = longest(rule.column)
        if invented.stamp(self._given) != rule.stamp:
            message = f"Faker has other values here than where the rules of {rule.table} were read."
            remedy = "Install the same version of it everywhere."
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=remedy, table=str(rule.table))
        failing = self._failing_closed()
        with failing:
            is_of_values = not self._given.reads or isinstance(self._given, declared.Boolean)
            self._function = function_of(self._given, rule.column, key) if is_of_values else None
            if isinstance(self._given, declared.Mask) and self._function is not None:
                self._function(pa.array([], pa.large_string()))  # Arrow may not know what Python's expressions know
            return
        raise failing.error

    @property
    def fills_null(self) -> bool:
        """Whether a row without a value gets one."""
        return isinstance(self._given, declared.Constant | declared.Template)

    def of(self, values: pa.Array, others: Others) -> pa.Array:
        """Returns the texts, as large_binary, that stand for these. NULL stays NULL, unless `fills_null`."""
        failing = self._failing_closed()
        with failing:
            return self._of(values, others)
        if self.rule.null_on_error:
            return self._of_each(values, others)
        raise failing.error

    def _of(self, values: pa.Array, others: Others) -> pa.Array:
        given, known = self._given, values.cast(pa.large_string())
        if is_padded(self._column):
            known = pc.utf8_rtrim(known, " ")
        if isinstance(given, declared.Constant):
            made = pa.repeat(pa.scalar(given.value, pa.large_string()), len(values))
        elif isinstance(given, declared.Template):
            names = {name: others(name).cast(pa.large_string()) for name in given.reads}
            made = documents.rendered(given, self._key, names, len(values))
        elif isinstance(given, declared.Boolean):
            made = _where_valid(known, self._applied(others(given.by)))
        elif isinstance(given, declared.Date | declared.Timestamp) and given.by is not None:
            made = self._moved(given, known, others(given.by))
        else:
            made = self._applied(known)
        return self._fitting(made).cast(pa.large_binary())

    def _applied(self, values: pa.Array) -> pa.Array:
        assert self._function is not None
        return applied(self._function, values.cast(pa.large_string()).fill_null("") if self._reads else values)

    @property
    def _reads(self) -> bool:
        return bool(self._given.reads)

    def _moved(self, given: declared.Date | declared.Timestamp, values: pa.Array, by: pa.Array) -> pa.Array:
        filled = values.fill_null("1970-01-01")
        made = moments.moved(given, self._column, self._key, filled, by.cast(pa.large_string()).fill_null(""))
        return _where_valid(values, made)

    def _fitting(self, made: pa.Array) -> pa.Array:
        """Returns values that the type can hold."""
        if self._limit is None:
            return made
        cut = pc.utf8_slice_codeunits(made, 0, self._limit)
        return pc.utf8_rpad(cut, self._limit) if is_padded(self._column) else cut

    def _of_each(self, values: pa.Array, others: Others) -> pa.Array:
        """Transforms the values one by one; one for which that fails becomes NULL."""
        made: list[pa.Array] = []
        for at in range(len(values)):
            failing = self._failing_closed()
            with failing:
                made.append(self._of(values.slice(at, 1), lambda name, at=at: others(name).slice(at, 1)))  # type: ignore[misc]
                continue
            made.append(pa.nulls(1, pa.large_binary()))
        return pa.concat_arrays(made) if made else pa.array([], pa.large_binary())

    def _failing_closed(self) -> _FailingClosed:
        return _FailingClosed(self.rule)


def _where_valid(values: pa.Array, made: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(values), made, pa.scalar(None, made.type))


class _FailingClosed:
    """A context in which an exception is kept as `error`, without its words. Errors of pgetl pass: these never hold a
    value."""

    def __init__(self, rule: ColumnRule) -> None:
        self._rule = rule
        self.error: PgetlError = PgetlError(ErrorKind.INTERNAL, "Nothing was transformed.")

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or (isinstance(error, PgetlError) and error.kind is not ErrorKind.VALUE):
            return False
        rule = self._rule
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"
        message = (
            f'Column {rule.column.name} of {rule.table} could not be transformed by "{rule.use}": '
            f"{type(error).__name__} at {place}."
        )
        self.error = PgetlError(ErrorKind.TRANSFORM, message, table=str(rule.table))
        return True
