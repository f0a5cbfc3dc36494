"""Reports the tasks of a pipeline to OpenLineage, through Airflow's provider of that name.

That provider's listener queries a task when it starts, completes or fails, in a process or thread of its own beside the
task's: `tasks` has the methods that it calls, `datasets` names tables as OpenLineage's specification does, `facets`
contains what is reported of them. Nothing here is imported before it is called, so the provider works without
OpenLineage; the listener logs errors that happen here, and they never affect the task.

Everything comes from three places: the declaration, the fields of connections that hold no secret, and one read of the
pipeline's state. Neither the source nor the destination is queried.
"""
