"""``python -m airflow_provider_pgetl``: the command line, where `pgetl` itself is not on the path."""

from airflow_provider_pgetl.cli import main

if __name__ == "__main__":
    main()
