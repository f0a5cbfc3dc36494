"""What the tasks of a pipeline tell OpenLineage, by Airflow's provider of that name.

That provider's listener asks a task when it starts, completes or fails, in a process or thread of its own beside the
task's: `tasks` answers, `datasets` names tables as OpenLineage's specification does, `facets` says what is known of
them. Nothing here is imported before it is asked, so the provider works without OpenLineage; what goes wrong here is
logged by the listener, and never concerns the task.

Everything comes from three places: the declaration, the fields of connections that hold no secret, and one read of the
pipeline's state. Neither the source nor the destination is asked.
"""
