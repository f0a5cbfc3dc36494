"""Names of slots are taken apart into exactly what they were put together from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.slot_names import MAX_BYTES, SlotName, apply_slot, copy_slot

pipelines = st.from_regex(r"[a-z0-9_]{1,24}", fullmatch=True)
instances = st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True)
attempts = st.integers(1, 10**9)


@given(pipelines, instances, attempts)
def test_names_read_back(pipeline: str, instance: str, attempt: int) -> None:
    assert SlotName.parse(apply_slot(pipeline, instance)) == SlotName(pipeline, instance)
    assert SlotName.parse(copy_slot(pipeline, instance, attempt)) == SlotName(pipeline, instance, attempt)


@given(st.from_regex(r"pgetl_[a-z0-9_]{1,30}", fullmatch=True))
def test_what_comes_apart_can_be_put_together_again(text: str) -> None:
    parsed = SlotName.parse(text)
    assert parsed is None or str(parsed) == text


def test_a_namesake_with_a_longer_name_is_another() -> None:
    parsed = SlotName.parse(apply_slot("shop_eu", "x1"))
    assert parsed == SlotName("shop_eu", "x1")
    assert parsed is not None
    assert parsed.pipeline != "shop"


@pytest.mark.parametrize("text", ["pgetl_shop_x1_c007", "pgetl_shop_x1_c0", "pgetl_shop_x1_", "mine_shop_x1_apply"])
def test_others_names_are_nobodys(text: str) -> None:
    assert SlotName.parse(text) is None


@pytest.mark.parametrize(("pipeline", "instance"), [("Shop", "x1"), ("sh-op", "x1"), ("", "x1"), ("shop", "x_1")])
def test_what_no_slot_may_be_called_is_refused(pipeline: str, instance: str) -> None:
    with pytest.raises(PgetlError, match="cannot be part of a slot's name"):
        apply_slot(pipeline, instance)


def test_a_name_that_is_too_long_is_refused_not_cut() -> None:
    with pytest.raises(PgetlError, match=f"longer than {MAX_BYTES} bytes") as caught:
        copy_slot("s" * 50, "abcdef12", 7)
    assert caught.value.kind is ErrorKind.CONFIG
