"""Steps come back as they went in, from memory or disk, as often as asked; and what they take is given back."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.wal.pgoutput import Relation
from airflow_provider_pgetl.engine.wal.spool import AssembledStep, Budget, Sealed, Spool, TruncateStep
from tests.raising import raises

RELATION = Relation(1, TableName("public", "t"), "default", ())
TRUNCATE = TruncateStep("key", RELATION, CommitLsn(5), 0, 1)


def sealed(key: str, rows: list[bytes], commits: int = 1) -> Sealed[str]:
    return Sealed(
        key,
        RELATION,
        b"".join(rows),
        np.array([len(row) for row in rows], np.int64),
        np.arange(3 * commits, dtype=np.int64).reshape(-1, 3),
        np.arange(len(rows), dtype=np.int64) + 7,
    )


def contents(step: AssembledStep[str]) -> tuple[object, ...]:
    if isinstance(step, TruncateStep):
        return ("truncate", step.key, step.commit_lsn, step.ordinal)
    arrays = (step.lengths.tolist(), step.commits.tolist(), step.ordinals.tolist())
    return (step.key, step.relation, bytes(step.data), *arrays)


rows = st.lists(st.binary(max_size=50), min_size=1, max_size=8)
some_steps = st.lists(
    st.one_of(st.builds(sealed, st.sampled_from("ab"), rows, st.integers(1, 4)), st.just(TRUNCATE)), max_size=12
)


@settings(max_examples=60)
@given(some_steps, st.integers(0, 1500), st.booleans())
def test_what_is_appended_is_read_twice_the_same(steps: list[AssembledStep[str]], limit: int, secret: bool) -> None:
    budget = Budget(limit)
    spool: Spool[str] = Spool(budget, secret=secret)
    for step in steps:
        spool.append(step)
    expected = [contents(step) for step in steps]
    assert [contents(step) for step in spool] == expected
    assert [contents(step) for step in spool] == expected
    assert spool.nbytes == spool.spilled_bytes + budget.claimed
    assert budget.claimed <= limit
    spool.close()
    assert budget.claimed == 0


def test_reading_may_be_interrupted_and_interleaved() -> None:
    spool: Spool[str] = Spool(Budget(0))
    for key in "abc":
        spool.append(sealed(key, [key.encode() * 3]))
    one, other = iter(spool), iter(spool)
    seen = [next(one).key, next(other).key, next(one).key, next(one).key, next(other).key]
    assert seen == ["a", "a", "b", "c", "b"]


def test_a_budget_is_shared_and_given_back() -> None:
    step = sealed("k", [b"x" * 1000])
    budget = Budget(step.nbytes)
    first: Spool[str] = Spool(budget)
    first.append(step)
    second: Spool[str] = Spool(budget)
    second.append(step)
    assert (first.spilled_bytes, second.spilled_bytes) == (0, step.nbytes)
    del first
    gc.collect()
    third: Spool[str] = Spool(budget)
    third.append(step)
    assert third.spilled_bytes == 0


def open_files_under(directory: Path) -> int:
    descriptors = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(descriptor).startswith(str(directory)) for descriptor in descriptors)


def test_the_file_has_no_name_and_goes_with_the_spool(tmp_path: Path) -> None:
    spool: Spool[str] = Spool(Budget(0), tmp_path)
    spool.append(sealed("k", [b"x" * 1000]))
    assert list(tmp_path.iterdir()) == []
    assert open_files_under(tmp_path) == 1
    del spool
    gc.collect()
    assert open_files_under(tmp_path) == 0


def opened_in(folder: Path) -> Path:
    """The one file of this process that is open in the folder."""
    links = [one for one in list(Path("/proc/self/fd").iterdir()) if one.is_symlink()]
    (found,) = [one for one in links if str(folder) in str(one.readlink())]
    return found


def test_a_secret_spool_writes_nothing_that_can_be_read(tmp_path: Path) -> None:
    for secret in (True, False):
        spool: Spool[str] = Spool(Budget(0), tmp_path, secret=secret)
        spool.append(sealed("a", [b"canary " * 9] * 9))
        spool.append(sealed("b", [b"canary " * 9]))
        assert (b"canary" in opened_in(tmp_path).read_bytes()) is not secret
        assert [contents(step)[2] for step in spool] == [b"canary " * 81, b"canary " * 9]
        spool.close()


def test_a_closed_spool_is_not_mistaken_for_an_empty_one() -> None:
    spool: Spool[str] = Spool(Budget(0))
    spool.append(sealed("k", [b"x"]))
    spool.close()
    with pytest.raises(PgetlError, match="let go"):
        list(spool)
    with pytest.raises(PgetlError, match="let go"):
        spool.append(TRUNCATE)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    spool: Spool[str] = Spool(Budget(0), tmp_path / "missing")
    with raises(ErrorKind.RESOURCES, match="missing"):
        spool.append(sealed("k", [b"x"]))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    spool: Spool[str] = Spool(Budget(0), tmp_path)
    with (
        Path("/dev/full").open("wb", buffering=0) as spool._file,
        pytest.raises(PgetlError, match="No space") as refusal,
    ):
        spool.append(sealed("k", [b"x"]))
    assert refusal.value.kind == ErrorKind.RESOURCES
