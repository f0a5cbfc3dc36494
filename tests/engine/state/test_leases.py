"""Who may stream, and which copy attempts are alive: judged by the store's clock alone."""

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World

LONG = 60.0
SHORT = 0.2


def test_a_free_lease_is_taken_with_a_new_epoch(store: Store) -> None:
    lease = store.acquire_lease("a", LONG)
    assert lease is not None
    assert (lease.holder, lease.epoch, store.pipeline().epoch) == ("a", 1, 1)
    assert store.lease() == lease


def test_a_held_lease_is_not_given_to_another(store: Store, world: World) -> None:
    held = store.acquire_lease("a", LONG)
    assert world.open().acquire_lease("b", LONG) is None
    assert store.lease() == held


def test_the_holder_itself_gets_a_new_epoch(store: Store) -> None:
    store.acquire_lease("a", LONG)
    again = store.acquire_lease("a", LONG)
    assert again is not None
    assert again.epoch == 2
    assert not store.renew_lease(1, LONG)
    assert store.renew_lease(2, LONG)


def test_an_expired_lease_is_free(store: Store, world: World) -> None:
    store.acquire_lease("a", SHORT)
    world.pass_time(SHORT * 1.5)
    assert store.lease() is None
    taken = world.open().acquire_lease("b", LONG)
    assert taken is not None
    assert taken.epoch == 2
    assert not store.renew_lease(1, LONG)


def test_renewing_keeps_a_lease_alive(store: Store, world: World) -> None:
    store.acquire_lease("a", SHORT)
    assert store.renew_lease(1, LONG)
    world.pass_time(SHORT * 1.5)
    assert world.open().acquire_lease("b", LONG) is None


def test_an_expired_lease_that_nobody_took_can_be_renewed(store: Store, world: World) -> None:
    store.acquire_lease("a", SHORT)
    world.pass_time(SHORT * 1.5)
    assert store.renew_lease(1, LONG)
    assert store.lease() is not None


def test_a_released_lease_is_free_and_not_renewed(store: Store, world: World) -> None:
    store.acquire_lease("a", LONG)
    store.release_lease(1)
    assert store.lease() is None
    assert not store.renew_lease(1, LONG)
    assert world.open().acquire_lease("b", LONG) is not None


def test_only_the_present_epoch_releases(store: Store, world: World) -> None:
    store.acquire_lease("a", LONG)
    store.acquire_lease("a", LONG)
    store.release_lease(1)
    assert store.lease() is not None


def test_a_holder_that_has_ended_is_evicted_by_the_epoch_it_was_judged_under_and_no_other(
    store: Store, world: World
) -> None:
    """Several starters may find it ended at once: the first takes the lease, and the second not from the first."""
    ended = store.acquire_lease("ended", LONG)
    assert ended is not None
    first = world.open().acquire_lease("first", LONG, over=ended.epoch)
    assert first is not None
    assert first.epoch == ended.epoch + 1
    assert world.open().acquire_lease("second", LONG, over=ended.epoch) is None
    assert store.lease() == first


def test_raising_the_epoch_ends_whoever_held_the_lease(store: Store, world: World) -> None:
    store.acquire_lease("a", LONG)
    other = world.open()
    assert other.raise_epoch() == 2
    assert other.pipeline().epoch == 2
    assert other.lease() is None
    assert not store.renew_lease(1, LONG)
    assert not store.renew_lease(2, LONG)


def test_leases_of_pipelines_are_apart(store: Store, world: World) -> None:
    store.acquire_lease("a", LONG)
    assert world.open(f"{world.pipeline_id}_eu").acquire_lease("b", LONG) is not None


def test_attempts_are_numbered_through_the_pipeline_and_never_twice(store: Store, world: World) -> None:
    other = world.open()
    assert [store.start_attempt(LONG), other.start_attempt(LONG)] == [1, 2]
    store.end_attempt(2)
    assert store.start_attempt(LONG) == 3
    assert other.live_attempts() == {1, 3}


def test_an_attempt_lives_while_it_beats(store: Store, world: World) -> None:
    silent, beating = store.start_attempt(SHORT), store.start_attempt(6 * SHORT)
    assert store.beat_attempt(beating, LONG)
    world.pass_time(7 * SHORT)
    assert store.live_attempts() == {beating}
    assert silent not in store.live_attempts()


def test_a_dead_attempt_does_not_come_back(store: Store, world: World) -> None:
    attempt = store.start_attempt(SHORT)
    world.pass_time(SHORT * 1.5)
    assert not store.beat_attempt(attempt, LONG)
    store.start_attempt(LONG)
    assert attempt not in store.live_attempts()
    store.end_attempt(attempt)


def test_each_living_attempt_names_its_holder(store: Store, world: World) -> None:
    store.start_attempt(LONG, "host a, process 1")
    store.start_attempt(SHORT, "host b, process 2")
    store.start_attempt(LONG)
    world.pass_time(SHORT * 1.5)
    assert world.open().attempt_holders() == {1: "host a, process 1", 3: ""}


def test_an_ended_attempt_does_not_beat(store: Store) -> None:
    attempt = store.start_attempt(LONG)
    store.end_attempt(attempt)
    assert not store.beat_attempt(attempt, LONG)
    assert not store.beat_attempt(99, LONG)
    assert store.live_attempts() == frozenset()
