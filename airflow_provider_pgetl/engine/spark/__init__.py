"""Copies and merges as Spark applications: submission, the applications, the executors' side."""
