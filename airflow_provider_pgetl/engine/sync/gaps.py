"""Gaps in history: where what a table depends on is not what it was, so that changes may be missing.

Where tables are past Init but the cluster, the database, the publication, the table itself, the apply slot or the
destination's positions have changed identity, nothing can say what happened in between. A gap is never bridged
silently: by `on_slot_lost` the pipeline is refused, or the tables concerned are reset and copied again.

Judging changes nothing; `settle` acts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.lineage import compare
from airflow_provider_pgetl.engine.phases import FOLLOWED, Reset, needs_group_slot, past_init, phase_name
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.lineage import Present, read_lineage
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.source.slots import Slot, deciding, drop_slot, find_slot, list_slots
from airflow_provider_pgetl.engine.sync.declared import membership
from airflow_provider_pgetl.engine.sync.desk import CEILING
from airflow_provider_pgetl.engine.sync.events import apply_each
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.slots_of_groups import group_slots
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName

_REMEDY = (
    "If this is the right source and destination, copy the tables again: `pgetl reset FILE TABLE` for each, "
    'or set on_slot_lost = "resync".'
)


class Gaps:
    """Collects the tables that have no continuous history any more."""

    def __init__(self, site: Site, anyway: Collection[TableName] = ()) -> None:
        """`anyway`: tables that are copied anew in any case."""
        self._site = site
        self._records = {table: record for table, record in site.store.tables().items() if table not in anyway}
        self._lost: dict[TableName, str] = {}
        self._present: Present | None = None
        self._slot_void = False

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge_lineage(self, connection: Connection) -> None:
        self._present = self._read_present(connection)
        why = self._wrong_with_lineage(self._present)
        if why is not None:
            self._slot_void = True
            self._lose(self._past_init(), why)

    def _read_present(self, connection: Connection) -> Present:
        replication = self._site.connect_replication("prepare")
        try:
            return read_lineage(replication, connection, self._site.spec.publication)
        finally:
            replication.finish()

    def _wrong_with_lineage(self, present: Present) -> str | None:
        """Why this is not the source that the pipeline has followed."""
        recorded = self._site.store.pipeline().lineage
        if recorded is None:
            return None
        return compare(recorded, present.lineage, self._furthest(), present.wal_end)

    def _furthest(self) -> Boundary:
        marks = [record.high_water for record in self._records.values()]
        return max([self._site.store.progress(CEILING) or START, *marks])

    def judge_tables(self, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> None:
        for candidate in candidates:
            record = self._records.get(candidate.table)
            if record is None or record.relation is None or not past_init(record.state):
                continue
            if record.relation != candidate.match.relation.oid:
                self._lose([candidate.table], "it was dropped and created again at the source")
            elif record.membership != membership(candidate, publications):
                self._lose([candidate.table], "it was taken out of the publication")

    def judge_destination(self) -> None:
        """Tables that are followed must stand where they were seen."""
        destination = self._site.open_destination("prepare")
        try:
            if not isinstance(destination, Positions):
                return
            found = destination.positions(self._site.pipeline)
        finally:
            destination.shutdown()
        for table, record in self._records.items():
            metadata = self._site.store.destination_metadata(table)
            if phase_name(record.state.phase) not in FOLLOWED or metadata is None:
                continue
            there = found.get(metadata.destination)
            if there is None:
                self._lose([table], "the destination does not know it any more")
            elif there.position < record.high_water:
                was = f"the destination has it at {there.position}, before {record.high_water} which it had reached"
                self._lose([table], f"{was}: it was restored")

    def judge_slot(self, connection: Connection) -> None:
        """Tables whose own group's slot is gone are none of the apply slot's: they are copied again in any case."""
        slots = group_slots(list_slots(connection, self._site.pipeline, self._site.instance))
        alive = {attempt for attempt, slot in slots.items() if slot.lost is None} | self._site.store.live_attempts()
        states = {table: self._records[table].state for table in self._past_init()}
        dependent = [t for t, state in states.items() if not needs_group_slot(state) or state.attempt in alive]
        if not dependent:
            return
        why = self._wrong_with_slot(find_slot(connection, self._site.apply_slot))
        if why is not None:
            self._slot_void = True
            self._lose(dependent, why)

    def _wrong_with_slot(self, slot: Slot | None) -> str | None:
        """Why the apply slot cannot carry on."""
        if slot is None:
            return f"the replication slot {self._site.apply_slot} does not exist any more"
        if slot.lost is not None:
            return f"the replication slot {slot.name} is lost ({slot.lost})"
        ceiling = self._site.store.progress(CEILING) or START
        if slot.confirmed is None or slot.confirmed > ceiling:
            return f"the replication slot {slot.name} was confirmed by somebody else, or made anew ({slot.confirmed})"
        return None

    def _past_init(self) -> list[TableName]:
        return [table for table, record in self._records.items() if past_init(record.state)]

    def _lose(self, tables: Iterable[TableName], why: str) -> None:
        for table in tables:
            self._lost.setdefault(table, why)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def finding(self) -> Finding | None:
        """All of it in one sentence."""
        if not self._lost:
            return None
        if self._site.spec.source.on_slot_lost == "resync":
            remedy = 'The next run copies these tables again, for on_slot_lost = "resync".'
            return Finding(self._sentence(), remedy, "warning")
        return Finding(self._sentence(), _REMEDY, kind=self._kind)

    def refuse(self) -> None:
        """Raise, if something is lost that may not be bridged."""
        if self._lost and self._site.spec.source.on_slot_lost == "error":
            raise PgetlError(self._kind, self._sentence(), remedy=_REMEDY)

    @property
    def _kind(self) -> ErrorKind:
        return ErrorKind.LINEAGE if self._slot_void else ErrorKind.SLOT_LOST

    def settle(self, connection: Connection) -> None:
        """Refuse, or reset what is lost; then the lineage that is present is the one that counts."""
        self.refuse()
        site = self._site
        for table, why in self._lost.items():
            site.observer(Noted("warning", f"{written(table)} is copied again, for {why}.", table))
        apply_each(site, {table: Reset(self._records[table].state.generation) for table in self._lost})
        with deciding(connection, site.apply_slot):
            if self._slot_void:
                self._give_up_slot(connection)
            if self._present is not None:
                site.store.record_lineage(self._present.lineage)

    def _give_up_slot(self, connection: Connection) -> None:
        """Unless somebody else has done so since it was judged, and may have made another."""
        site = self._site
        site.store.load()
        self._present = self._read_present(connection)
        slot = find_slot(connection, site.apply_slot)
        if self._wrong_with_lineage(self._present) or self._wrong_with_slot(slot):
            drop_slot(connection, site.apply_slot, terminate=True)
            site.store.delete_progress(CEILING)

    def _sentence(self) -> str:
        reasons: dict[str, list[TableName]] = {}
        for table, why in self._lost.items():
            reasons.setdefault(why, []).append(table)
        said = "; ".join(f"{why} ({', '.join(map(str, sorted(tables)))})" for why, tables in reasons.items())
        return f"Changes may be missing: {said}."
