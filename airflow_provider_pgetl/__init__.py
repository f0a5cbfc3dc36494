"""Postgres replication for Airflow: declare tables, and they are copied and kept up to date."""
