"""Tables and schemas for the tests of the stores."""

from airflow_provider_pgetl.engine.model.positions import Boundary, Lineage
from airflow_provider_pgetl.engine.model.tables import Column, CopiedSelection, PgType, TableName, TableSchema

ORDERS = TableName("public", "orders")
CUSTOMERS = TableName("public", "customers")
AWKWARD = TableName("Weird Schema", 'Ta"ble–ü')

LINEAGE = Lineage("7301234567890123456", 2, ((1, Boundary.parse("0/3000000")),), 16400, 16500)
TERMS = CopiedSelection(frozenset({"id", 'Wéird "col"'}), "(id > 7)", False, TableName("archive", "orders"))

_INT = PgType(23, "int4")
_MOOD = PgType(16999, "public.mood", kind="enum", labels=("sad", "it's ok"))


def schema_of(table: TableName, *names: str) -> TableSchema:
    """A schema with these columns, the first of which is the key."""
    columns = tuple(Column(name, _MOOD if name == "mood" else _INT, "integer") for name in names)
    return TableSchema(table, 16384, columns, names[:1])
