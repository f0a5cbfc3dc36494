"""For those who write destinations: prove yours.

from airflow_provider_pgetl.testing import DestinationConformance

class TestMine(DestinationConformance):
    def open(self): return MyDestination(...)
    def rows(self, table): return [...]
"""
