"""How Alembic runs our migrations: on the connection, and in the transaction, that `state.state_database` hands
over."""

from __future__ import annotations

from alembic import context

from airflow_provider_pgetl.engine.state.schema import SCHEMA, VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
)
context.run_migrations()
