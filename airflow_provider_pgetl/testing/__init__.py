"""For authors of destinations: a test suite for the contract of destinations.

    from airflow_provider_pgetl.testing import DestinationConformance

    class TestMine(DestinationConformance):
        def open(self):
            return MyDestination(...)

        def read(self, table):
            return [(row.id, row.name, row.note) for row in ...]

Run it with pytest. The protocols that your destination implements are tested, the others are skipped.
"""

from airflow_provider_pgetl.testing.builders import ABSENT, Wire
from airflow_provider_pgetl.testing.conformance import DestinationConformance

__all__ = ["ABSENT", "DestinationConformance", "Wire"]
