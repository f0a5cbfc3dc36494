"""What a table's Errored phase says of the error that it comes of."""

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import RetryPolicy
from airflow_provider_pgetl.engine.sync.failures import failure_of


def test_what_the_state_could_not_keep_is_left_out() -> None:
    error = PgetlError(ErrorKind.DAMAGED, "expected value, found \0\0PAR1")
    assert failure_of(error, 0.0).reason == "expected value, found PAR1"


def test_when_it_is_tried_again_is_the_error_s() -> None:
    assert failure_of(PgetlError(ErrorKind.VALUE, "x"), 10.0).retry_policy == RetryPolicy("manual")
    assert failure_of(PgetlError(ErrorKind.COPY_DIED, "x"), 10.0).retry_policy == RetryPolicy("timed", 40.0)
    assert failure_of(PgetlError(ErrorKind.UNSENT_VALUE, "x"), 10.0).retry_policy == RetryPolicy(
        "timed", 40.0, anew=True
    )
