"""What waits for the shop's pipeline from another DAG, in each way in which a sensor can."""

from airflow.sdk import DAG

from airflow_provider_pgetl import LagSensor, PhaseSensor

with DAG("sensing", schedule=None):
    for name, options in {
        "deferred": {},
        "poked": {"deferrable": False, "poke_interval": 1},
        "rescheduled": {"mode": "reschedule", "poke_interval": 1},
    }.items():
        PhaseSensor(
            task_id=f"orders_{name}", pipeline="shop", state_conn_id="shop_db", table="public.orders", **options
        )
    LagSensor(task_id="fresh", pipeline="shop", state_conn_id="shop_db", max_lag="5min")
    for name, soft_fail in (("optional", True), ("needed", False)):
        PhaseSensor(
            task_id=name,
            pipeline="shop",
            state_conn_id="shop_db",
            table="public.nothing",
            soft_fail=soft_fail,
            retries=0,
        )
