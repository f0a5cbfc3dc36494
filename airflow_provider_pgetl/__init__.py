"""Postgres replication for Airflow: declare tables, and they are copied and kept up to date.

This module is imported by Spark's Python workers and by every Airflow process, so it imports nothing.
"""

__version__ = "0.1.0"
