"""Real processes: Airflow's four, Spark, PostgreSQL, and a shop that never stops trading."""
