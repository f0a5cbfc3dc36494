"""The replication page in Airflow's UI: the state of every table of every pipeline."""
