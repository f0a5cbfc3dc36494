"""For those who write destinations: prove that yours keeps the contract.

    from airflow_provider_pgetl.testing import DestinationConformance

    class TestMine(DestinationConformance):
        def open(self):
            return MyDestination(...)

        def read(self, table):
            return [(row.id, row.name, row.note) for row in ...]

Run it with pytest. What your destination claims to be able to do is tested, the rest is skipped.
"""

from airflow_provider_pgetl.testing.builders import ABSENT, Wire
from airflow_provider_pgetl.testing.conformance import DestinationConformance

__all__ = ["ABSENT", "DestinationConformance", "Wire"]
