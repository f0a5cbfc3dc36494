"""The replication engine; it knows nothing of Airflow."""
