"""An object store that speaks S3, for tests: moto's, in a process of its own, because delta-rs holds the interpreter's
lock in some of its requests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

_ROOT = Path(__file__).parent.parent
KEY_ID, REGION, BUCKET = "k", "us-east-1", "lake"


@contextmanager
def object_store(secret: str) -> Iterator[str]:
    """The address of a store with an empty bucket."""
    with _serving("moto.server", "-H", "127.0.0.1", "-p", "{port}") as address:
        s3_client(address, secret).create_bucket(Bucket=BUCKET)
        yield address


@contextmanager
def unconditional(address: str) -> Iterator[str]:
    """The address of the same store as one that knows no conditions."""
    with _serving("tests.unconditional_store", "{port}", urlsplit(address).netloc) as unconditional_address:
        yield unconditional_address


@contextmanager
def _serving(module: str, *arguments: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", module, *(one.format(port=port) for one in arguments)]
    server = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def s3_client(address: str, secret: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=address, region_name=REGION, aws_access_key_id=KEY_ID, aws_secret_access_key=secret
    )


def emptied(address: str, secret: str) -> None:
    client = s3_client(address, secret)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=found["Key"])


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the object store does not start")
