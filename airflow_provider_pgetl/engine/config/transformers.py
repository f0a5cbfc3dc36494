"""Transformers as they are declared: what replaces the values of a column on their way to the destination.

A transformer is a frozen dataclass of its options, in a pipeline file (`use = "email"` with the options beside it) and
in a DAG (`Email()`) alike. `engine.transform` has the code that computes them; nothing here imports more than a DAG
file may.

What every transformer promises, and the tests of `engine.transform` hold it to:

* The output is a value of the column's own type, no longer than the type allows.
* NULL stays NULL. Only `Constant` and `Template` give a value to every row.
* The same input under the same key gives the same output: in every table, in every run, by copy and by stream.
  Without the key nothing of the input can be computed from the output, except what the options keep on purpose.
* Where `keeps_unique` says so, different inputs have different outputs.
"""

from __future__ import annotations

import importlib
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cache
from typing import Any, ClassVar, Literal

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.validation import Misdeclared, refuse, suggestion
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column

# -- Families of types, by which a transformer says what it can be used for. -------------------------------------------

Family = Literal[
    "text", "integer", "float", "numeric", "boolean", "date", "timestamp", "uuid", "bytes", "json", "inet", "hstore",
    "enum", "other",
]  # fmt: skip

_FAMILIES: Mapping[int, Family] = {
    16: "boolean",
    17: "bytes",
    19: "text",  # name
    20: "integer",
    21: "integer",
    23: "integer",
    25: "text",
    114: "json",
    650: "inet",  # cidr
    700: "float",
    701: "float",
    869: "inet",
    1042: "text",  # char(n)
    1043: "text",
    1082: "date",
    1114: "timestamp",
    1184: "timestamp",
    1700: "numeric",
    2950: "uuid",
    3802: "json",
}
_NAME, _PADDED, _VARYING = 19, 1042, 1043
_INTEGER_BITS: Mapping[int, int] = {21: 16, 23: 32, 20: 64}
UNIQUE_BITS = 80
"""So many bits of a keyed hash are taken for unique: of a thousand million values, two collide with a probability of
less than one in a million."""


def family_of(column: Column) -> Family:
    root = column.type.root
    if root.kind == "enum":
        return "enum"
    if root.kind == "base" and not root.built_in:
        return {"citext": "text", "hstore": "hstore"}.get(root.name.rpartition(".")[2], "other")  # type: ignore[return-value]
    return _FAMILIES.get(root.oid, "other")


def longest(column: Column) -> int | None:
    """Returns how many characters a value may have; None if that is not limited."""
    root = column.type.root
    if root.oid == _NAME:
        return 63
    if root.oid not in (_PADDED, _VARYING):
        return None
    if column.modifier >= 0:
        return column.modifier - 4
    sized = re.search(r"\((\d+)\)", root.sql_type or column.sql_type)
    return int(sized[1]) if sized else None


def is_padded(column: Column) -> bool:
    """Whether the type is char(n), whose values have blanks at their end that mean nothing."""
    return column.type.root.oid == _PADDED


def integer_bits(column: Column) -> int:
    return _INTEGER_BITS[column.type.root.oid]


# -- Transformers. -----------------------------------------------------------------------------------------------------

Transformers = Mapping[str, "type[Transformer]"]


@dataclass(frozen=True, slots=True)
class Transformer:
    """What all transformers have. `use` is the name in a pipeline file; `families` the types it can be used for, None
    for all."""

    use: ClassVar[str]
    families: ClassVar[frozenset[Family] | None] = None
    needs_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validation.check_types(self)
        self.check()

    def check(self) -> None:
        """Raises an error (`validation.refuse`, with the key) unless the options are valid."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Other columns of the row that the output depends on."""
        return ()

    @property
    def is_keyed(self) -> bool:
        """Whether the output depends on the key."""
        return self.needs_key

    def misfit(self, column: Column) -> str | None:
        """Returns why this column cannot be transformed like this, as the end of a sentence; None if it can."""
        if self.families is not None and family_of(column) not in self.families:
            return f'"{self.use}" is for columns of type {_listed(self.families)}, and it is {column.sql_type}'
        return None

    def keeps_unique(self, column: Column) -> bool:
        """Whether different values of this column have different outputs."""
        del column
        return False

    @property
    def options(self) -> Mapping[str, Any]:
        """The options as a pipeline file has them, without those that are not set."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Transformer):
        return {"use": value.use, **value.options}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _listed(families: frozenset[Family]) -> str:
    *others, last = sorted(families)
    return f"{', '.join(others)} or {last}" if others else last


_TEXT: frozenset[Family] = frozenset({"text"})


@dataclass(frozen=True, slots=True)
class Keep(Transformer):
    """Leaves the column as it is. With `mode = "strict"` this is how one says that a column may pass."""

    use: ClassVar[str] = "keep"
    needs_key: ClassVar[bool] = False

    def keeps_unique(self, column: Column) -> bool:
        del column
        return True


@dataclass(frozen=True, slots=True)
class Null(Transformer):
    """NULL in every row. The column must be nullable."""

    use: ClassVar[str] = "null"
    needs_key: ClassVar[bool] = False

    def misfit(self, column: Column) -> str | None:
        return "it is NOT NULL" if column.not_null else None


@dataclass(frozen=True, slots=True)
class Constant(Transformer):
    """The same value in every row, also where the column is NULL.

    :param value: the value, as PostgreSQL writes it.
    """

    use: ClassVar[str] = "constant"
    needs_key: ClassVar[bool] = False
    value: str

    def __post_init__(self) -> None:
        given: object = self.value
        if isinstance(given, bool):
            object.__setattr__(self, "value", "t" if given else "f")
        elif isinstance(given, int | float):
            object.__setattr__(self, "value", str(given))
        Transformer.__post_init__(self)

    def misfit(self, column: Column) -> str | None:
        limit, labels = longest(column), column.type.root.labels
        if limit is not None and len(self.value) > limit:
            return f"the value is longer than {column.sql_type} allows"
        if family_of(column) == "enum" and self.value not in labels:
            return f"the value is none of the labels of {column.sql_type}"
        return None


@dataclass(frozen=True, slots=True)
class Hash(Transformer):
    """A keyed hash, HMAC-SHA-256, as text.

    :param length: how many characters of it are kept (bytes, for bytea); by default all, or what the type allows.
    :param encoding: `"hex"` or `"base64"` (in its form for URLs, without padding).
    """

    use: ClassVar[str] = "hash"
    families: ClassVar[frozenset[Family] | None] = frozenset({"text", "bytes"})
    length: int | None = None
    encoding: Literal["hex", "base64"] = "hex"

    def check(self) -> None:
        most = 64 if self.encoding == "hex" else 43
        if self.length is not None and not 1 <= self.length <= most:
            refuse("length", f"it must be from 1 to {most}.")

    def keeps_unique(self, column: Column) -> bool:
        bits = 8 if family_of(column) == "bytes" else 4 if self.encoding == "hex" else 6
        lengths = [one for one in (self.length, longest(column), 256 // bits) if one is not None]
        return min(lengths) * bits >= UNIQUE_BITS


MaskKind = Literal[
    "default", "password", "name", "address", "email", "mobile", "telephone", "id", "credit_card", "url", "pattern"
]


@dataclass(frozen=True, slots=True)
class Mask(Transformer):
    """Stars in place of characters.

    :param kind: what stays readable: `"default"` nothing but the length; `"password"` nothing; `"name"` the first
        letter of each word; `"address"` the first six characters; `"email"` the first letter and the domain;
        `"mobile"` the first four and the last three characters; `"telephone"` the last four; `"id"` the last four;
        `"credit_card"` the first six and the last four; `"url"` scheme and host; `"pattern"` what `pattern` does not
        match. A value that is too short for its kind, or is not of its form, is masked as a whole.
    :param pattern: for `"pattern"`: a regular expression (RE2) for the parts to replace.
    """

    use: ClassVar[str] = "mask"
    families: ClassVar[frozenset[Family] | None] = _TEXT
    needs_key: ClassVar[bool] = False
    kind: MaskKind = "default"
    pattern: str | None = None

    def check(self) -> None:
        if (self.pattern is not None) != (self.kind == "pattern"):
            refuse("pattern", 'it belongs to kind = "pattern", which needs it.')
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                refuse("pattern", f"it is no regular expression: {error}.")


@dataclass(frozen=True, slots=True)
class Email(Transformer):
    """An address that does not exist: twenty letters and digits, which stand for the value, and a domain.

    :param domain: the domain.
    :param keep_domain: keeps the domain of each value instead; a value without one gets `domain`.
    """

    use: ClassVar[str] = "email"
    families: ClassVar[frozenset[Family] | None] = _TEXT
    domain: str = "example.com"
    keep_domain: bool = False

    def check(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9.-]{1,60}", self.domain):
            refuse("domain", "it must be a domain, such as example.com.")

    def misfit(self, column: Column) -> str | None:
        limit = longest(column)
        if limit is not None and limit < len(self.domain) + 9:
            return f"{column.sql_type} has no room for an address at {self.domain}"
        return Transformer.misfit(self, column)

    def keeps_unique(self, column: Column) -> bool:
        limit = longest(column)
        return limit is None or (not self.keep_domain and limit >= len(self.domain) + 21)


@dataclass(frozen=True, slots=True)
class Phone(Transformer):
    """Another number of the same form: each digit becomes another one; blanks and + - ( ) / . stay.

    :param keep: how many digits at the beginning stay, such as those of a country.
    """

    use: ClassVar[str] = "phone"
    families: ClassVar[frozenset[Family] | None] = _TEXT
    keep: int = 0

    def check(self) -> None:
        if not 0 <= self.keep <= 6:
            refuse("keep", "it must be from 0 to 6.")


@dataclass(frozen=True, slots=True)
class _Invented(Transformer):
    """Realistic values, which the library Faker knows.

    :param locale: language and country of the values, as Faker names it.
    """

    families: ClassVar[frozenset[Family] | None] = _TEXT
    locale: str = "en_US"

    def check(self) -> None:
        if not re.fullmatch(r"[a-z]{2,3}_[A-Z]{2}", self.locale):
            refuse("locale", "it must be a language and a country, such as en_US.")


@dataclass(frozen=True, slots=True)
class FirstName(_Invented):
    """A first name.

    :param locale: language and country of the values, as Faker names it.
    """

    use: ClassVar[str] = "first_name"


@dataclass(frozen=True, slots=True)
class LastName(_Invented):
    """A last name.

    :param locale: language and country of the values, as Faker names it.
    """

    use: ClassVar[str] = "last_name"


@dataclass(frozen=True, slots=True)
class FullName(_Invented):
    """A first and a last name.

    :param locale: language and country of the values, as Faker names it.
    """

    use: ClassVar[str] = "full_name"


@dataclass(frozen=True, slots=True)
class Company(_Invented):
    """The name of a company.

    :param locale: language and country of the values, as Faker names it.
    """

    use: ClassVar[str] = "company"


@dataclass(frozen=True, slots=True)
class Address(_Invented):
    """An address, or a part of one.

    :param locale: language and country of the values, as Faker names it.
    :param part: `"full"` (street, postcode and city), `"street"`, `"postcode"`, `"city"` or `"country"`.
    """

    use: ClassVar[str] = "address"
    part: Literal["full", "street", "postcode", "city", "country"] = "full"


@dataclass(frozen=True, slots=True)
class Integer(Transformer):
    """Another whole number. Without options, a permutation: different numbers stay different, those that are not
    negative stay so, and a small number becomes any number that the type has.

    :param minimum: with `maximum`: a number of this range instead.
    :param maximum: see `minimum`.
    :param noise: adds a number from -`noise` to `noise` instead, the same for equal values.
    :param bucket: rounds down to a multiple of it instead.
    """

    use: ClassVar[str] = "integer"
    families: ClassVar[frozenset[Family] | None] = frozenset({"integer"})
    minimum: int | None = None
    maximum: int | None = None
    noise: int | None = None
    bucket: int | None = None

    def check(self) -> None:
        _check_one_way(self, required=False)

    def misfit(self, column: Column) -> str | None:
        if (why := Transformer.misfit(self, column)) is not None:
            return why
        bound = 1 << (integer_bits(column) - 1)
        for given in (self.minimum, self.maximum, self.noise, self.bucket):
            if given is not None and not -bound <= given < bound:
                return f"{given} is out of the range of {column.sql_type}"
        return None

    @property
    def is_keyed(self) -> bool:
        return self.bucket is None

    def keeps_unique(self, column: Column) -> bool:
        del column
        return self.minimum is None and self.noise is None and self.bucket is None


@dataclass(frozen=True, slots=True)
class Float(Transformer):
    """Another number.

    :param minimum: with `maximum`: a number of this range.
    :param maximum: see `minimum`.
    :param noise: adds a number from -`noise` to `noise`, the same for equal values.
    :param bucket: rounds down to a multiple of it.
    """

    use: ClassVar[str] = "float"
    families: ClassVar[frozenset[Family] | None] = frozenset({"float", "numeric"})
    minimum: float | None = None
    maximum: float | None = None
    noise: float | None = None
    bucket: float | None = None

    def check(self) -> None:
        _check_one_way(self, required=True)

    @property
    def is_keyed(self) -> bool:
        return self.bucket is None


def _check_one_way(given: Integer | Float, *, required: bool) -> None:
    if (given.minimum is None) != (given.maximum is None):
        refuse("minimum", "it goes with maximum.")
    if given.minimum is not None and given.maximum is not None and given.minimum > given.maximum:
        refuse("minimum", "it must be at most the maximum.")
    ways = [name for name in ("minimum", "noise", "bucket") if getattr(given, name) is not None]
    if len(ways) > 1:
        refuse(ways[1], f"it cannot be set together with {ways[0]}.")
    if required and not ways:
        refuse("minimum", "one of minimum and maximum, noise or bucket must be set.")
    for name in ("noise", "bucket"):
        if getattr(given, name) is not None and getattr(given, name) <= 0:
            refuse(name, "it must be more than zero.")


@dataclass(frozen=True, slots=True)
class Boolean(Transformer):
    """True or false, by another column of the row: a boolean of its own has too few values to hide.

    :param by: the column that decides, such as the primary key.
    :param probability: of true.
    """

    use: ClassVar[str] = "boolean"
    families: ClassVar[frozenset[Family] | None] = frozenset({"boolean"})
    by: str
    probability: float = 0.5

    def check(self) -> None:
        if not 0 <= self.probability <= 1:
            refuse("probability", "it must be from 0 to 1.")

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.by,)


@dataclass(frozen=True, slots=True)
class Uuid(Transformer):
    """Another UUID."""

    use: ClassVar[str] = "uuid"
    families: ClassVar[frozenset[Family] | None] = frozenset({"uuid", "text"})

    def misfit(self, column: Column) -> str | None:
        limit = longest(column)
        if limit is not None and limit < 36:
            return f"{column.sql_type} has no room for a UUID"
        return Transformer.misfit(self, column)

    def keeps_unique(self, column: Column) -> bool:
        del column
        return True


@dataclass(frozen=True, slots=True)
class Choice(Transformer):
    """One of some values.

    :param values: the values, as PostgreSQL writes them.
    """

    use: ClassVar[str] = "choice"
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _tuple(self.values))
        Transformer.__post_init__(self)

    def check(self) -> None:
        if not self.values:
            refuse("values", "it is empty.")

    def misfit(self, column: Column) -> str | None:
        return next((why for value in self.values if (why := Constant(value).misfit(column)) is not None), None)


@dataclass(frozen=True, slots=True)
class _Moment(Transformer):
    shift_days: int | None = None
    by: str | None = None
    truncate: str | None = None
    earliest: str | None = None
    latest: str | None = None

    def check(self) -> None:
        ways = [name for name in ("shift_days", "truncate", "earliest") if getattr(self, name) is not None]
        if len(ways) != 1:
            refuse("shift_days", "one of shift_days, truncate, or earliest and latest must be set.")
        if self.shift_days is not None and not 1 <= self.shift_days <= 36_500:
            refuse("shift_days", "it must be from 1 to 36500.")
        if self.by is not None and self.shift_days is None:
            refuse("by", "it goes with shift_days.")
        if (self.earliest is None) != (self.latest is None):
            refuse("latest", "it goes with earliest.")
        if self.earliest is None or self.latest is None:
            return
        if _day("earliest", self.earliest) > _day("latest", self.latest):
            refuse("earliest", "it must not be after the latest.")

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.by is None else (self.by,)

    @property
    def is_keyed(self) -> bool:
        return self.truncate is None


def _day(key: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        refuse(key, "it must be a date, such as 1980-01-31.")


@dataclass(frozen=True, slots=True)
class Date(_Moment):
    """Another date.

    :param shift_days: moves each date by up to so many days, before or after.
    :param by: with `shift_days`: the column that decides by how much, so that the dates of one person keep their
        distances; by default the date itself.
    :param truncate: the first day of the `"week"`, `"month"`, `"quarter"` or `"year"` instead.
    :param earliest: with `latest`: any date of this range instead.
    :param latest: see `earliest`.
    """

    use: ClassVar[str] = "date"
    families: ClassVar[frozenset[Family] | None] = frozenset({"date"})
    truncate: Literal["week", "month", "quarter", "year"] | None = None


@dataclass(frozen=True, slots=True)
class Timestamp(_Moment):
    """Another moment.

    :param shift_days: moves each moment by up to so many days, before or after.
    :param by: with `shift_days`: the column that decides by how much; by default the moment itself.
    :param truncate: the begin of the `"minute"`, `"hour"`, `"day"`, `"week"`, `"month"`, `"quarter"` or `"year"`
        instead, in UTC.
    :param earliest: with `latest`: any moment of these days instead.
    :param latest: see `earliest`.
    """

    use: ClassVar[str] = "timestamp"
    families: ClassVar[frozenset[Family] | None] = frozenset({"timestamp"})
    truncate: Literal["minute", "hour", "day", "week", "month", "quarter", "year"] | None = None


@dataclass(frozen=True, slots=True)
class String(Transformer):
    """Any characters.

    :param length: how many; by default as many as the value has.
    :param alphabet: the characters to choose from, by default small letters and digits.
    """

    use: ClassVar[str] = "string"
    families: ClassVar[frozenset[Family] | None] = _TEXT
    length: int | None = None
    alphabet: str = string.ascii_lowercase + string.digits

    def check(self) -> None:
        if not 2 <= len(self.alphabet) <= 256 or not self.alphabet.isascii() or not self.alphabet.isprintable():
            refuse("alphabet", "it must be from 2 to 256 printable ASCII characters.")
        if len(set(self.alphabet)) != len(self.alphabet):
            refuse("alphabet", "a character is in it twice.")
        if self.length is not None and not 1 <= self.length <= 1_000_000:
            refuse("length", "it must be from 1 to 1000000.")


@dataclass(frozen=True, slots=True)
class Json(Transformer):
    """Transforms values inside a document.

    :param paths: transformers by their paths: keys, and `[*]` for the elements of a list, such as
        `contact.emails[*]`. A text at the path is transformed as a text column would be; a number as a text as well,
        and becomes a text. What is not there stays away; an object or list at a path is an error.
    """

    use: ClassVar[str] = "json"
    families: ClassVar[frozenset[Family] | None] = frozenset({"json"})
    paths: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", _nested("paths", self.paths))
        Transformer.__post_init__(self)

    def check(self) -> None:
        for path in self.paths:
            if not re.fullmatch(r"[^.\[\]]+(\[\*\])*(\.[^.\[\]]+(\[\*\])*)*", path):
                refuse(("paths", path), "it is no path; write keys with dots between, and [*] for all of a list.")

    @property
    def is_keyed(self) -> bool:
        return any(one.is_keyed for one in self.paths.values())


@dataclass(frozen=True, slots=True)
class Hstore(Transformer):
    """Transforms values of an hstore.

    :param keys: transformers by the keys of the hstore.
    """

    use: ClassVar[str] = "hstore"
    families: ClassVar[frozenset[Family] | None] = frozenset({"hstore"})
    keys: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _nested("keys", self.keys))
        Transformer.__post_init__(self)

    @property
    def is_keyed(self) -> bool:
        return any(one.is_keyed for one in self.keys.values())


def _nested(key: str, given: object) -> Mapping[str, Transformer]:
    """Returns the transformers inside a document, which get its texts: none of them may read other columns."""
    if not isinstance(given, Mapping) or not given:
        refuse(key, "it must be a table of keys, each with a transformer.")
    made: dict[str, Transformer] = {}
    for name, one in given.items():
        with validation.blamed_on((key, name)):
            made[name] = one if isinstance(one, Transformer) else _from_option(one)
            families = made[name].families
            if made[name].reads or (families is not None and "text" not in families):
                refuse((), f'"{made[name].use}" cannot be used inside a document, whose values are texts.')
    return made


def _from_option(given: object) -> Transformer:
    if isinstance(given, str):
        return transformer(given, {})
    if not isinstance(given, Mapping) or not isinstance(given.get("use"), str):
        refuse((), 'it must name a transformer: "email", or { use = "email" } with options.')
    return transformer(given["use"], {name: value for name, value in given.items() if name != "use"})


@dataclass(frozen=True, slots=True)
class Ip(Transformer):
    """The network of an address: the bits behind the prefix become zero.

    :param v4: the length of the prefix of an IPv4 address.
    :param v6: the length of the prefix of an IPv6 address.
    """

    use: ClassVar[str] = "ip"
    families: ClassVar[frozenset[Family] | None] = frozenset({"inet", "text"})
    needs_key: ClassVar[bool] = False
    v4: int = 24
    v6: int = 48

    def check(self) -> None:
        if not 0 <= self.v4 <= 32:
            refuse("v4", "it must be from 0 to 32.")
        if not 0 <= self.v6 <= 128:
            refuse("v6", "it must be from 0 to 128.")


@dataclass(frozen=True, slots=True)
class Encrypt(Transformer):
    """The value, encrypted by AES-SIV, as base64: whoever has the key can decrypt it."""

    use: ClassVar[str] = "encrypt"
    families: ClassVar[frozenset[Family] | None] = frozenset({"text", "bytes"})

    def misfit(self, column: Column) -> str | None:
        if longest(column) is not None:
            return f"an encrypted value is longer than the value, and {column.sql_type} is limited; make it text"
        return Transformer.misfit(self, column)

    def keeps_unique(self, column: Column) -> bool:
        del column
        return True


@dataclass(frozen=True, slots=True)
class Template(Transformer):
    """A text made of columns of the row, by a Jinja template, in a sandbox. The columns have their values before any
    transformation, as texts; NULL is none. The filter `hash` gives the keyed hash of a text: `{{ id | hash }}`.

    :param template: the template, such as `user {{ id | hash }}`.
    """

    use: ClassVar[str] = "template"
    families: ClassVar[frozenset[Family] | None] = _TEXT
    template: str

    def check(self) -> None:
        _columns_in(self.template)

    @property
    def reads(self) -> tuple[str, ...]:
        return _columns_in(self.template)

    @property
    def is_keyed(self) -> bool:
        return bool(re.search(r"\|\s*hash\b", self.template))


@cache
def _columns_in(template: str) -> tuple[str, ...]:
    from jinja2 import TemplateError, meta
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment()
    environment.filters["hash"] = str  # the real one needs the key
    try:
        return tuple(sorted(meta.find_undeclared_variables(environment.parse(template))))
    except TemplateError as error:
        refuse("template", f"it is no Jinja template: {error.message}.")


_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Custom(Transformer):
    """A class of your own, which is called with its options. It has a method `transform(values, key)`, from an Arrow
    array of texts to another one, or `transform_value(text, key)`, which is called for each value. Neither is called
    for NULL. `unique = True` in the class says that different values stay different.

    :param path: `package.module:Class`.
    :param arguments: the options.
    """

    use: ClassVar[str] = "custom"
    needs_key: ClassVar[bool] = False
    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if not _IMPORT_PATH.fullmatch(self.path):
            refuse("path", 'it must be "package.module:Class".')

    def load(self) -> Any:
        """Returns an instance of the class."""
        module_name, _, attribute = self.path.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)(**self.arguments)
        except (ImportError, AttributeError, TypeError) as error:
            message = f"The transformer {self.path} cannot be made: {type(error).__name__}: {error}."
            raise PgetlError(ErrorKind.CONFIG, message) from None

    def keeps_unique(self, column: Column) -> bool:
        del column
        return bool(getattr(self.load(), "unique", False))


TRANSFORMERS: Transformers = {
    one.use: one
    for one in (
        Keep, Null, Constant, Hash, Mask, Email, Phone, FirstName, LastName, FullName, Company, Address, Integer, Float,
        Boolean, Uuid, Choice, Date, Timestamp, String, Json, Hstore, Ip, Encrypt, Template,
    )
}  # fmt: skip


def transformer(use: str, options: Mapping[str, Any]) -> Transformer:
    """Returns the transformer of this name, or of this class of one's own, with these options."""
    if _IMPORT_PATH.fullmatch(use):
        return Custom(use, options)
    cls = TRANSFORMERS.get(use)
    if cls is None:
        remedy = f'Known are {", ".join(TRANSFORMERS)}; a class of your own is named "package.module:Class".'
        raise Misdeclared(("use",), f'there is no transformer "{use}"{suggestion(use, TRANSFORMERS)}', remedy=remedy)
    return validation.build(cls, {name: _tuple(value) for name, value in options.items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def used_name(given: Transformer) -> tuple[str, Mapping[str, Any]]:
    """Returns name and options from which `transformer` makes this one."""
    if isinstance(given, Custom):
        return given.path, given.arguments
    return given.use, given.options
