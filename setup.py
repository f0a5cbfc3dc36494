"""Where packages come from; all else is in pyproject.toml.

The Spark applications stand at the top of the repository, beside the package that they are installed in: a top-level
`spark_apps` in site-packages would be everybody's.
"""

from setuptools import find_namespace_packages, setup

APPLICATIONS = "airflow_provider_pgetl.spark_apps"

setup(
    packages=[*find_namespace_packages(include=["airflow_provider_pgetl*"]), APPLICATIONS],
    package_dir={APPLICATIONS: "spark_apps"},
)
