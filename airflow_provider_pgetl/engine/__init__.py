"""The replication engine. It does not depend on Airflow."""
