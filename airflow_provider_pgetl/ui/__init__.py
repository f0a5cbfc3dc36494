"""The replication page in Airflow's UI: where every table of every pipeline is."""
