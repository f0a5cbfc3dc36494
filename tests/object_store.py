"""An object store that speaks S3, for tests: moto's, in a process of its own, because delta-rs holds the interpreter's
lock in some of its requests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3

KEY_ID, REGION, BUCKET = "k", "us-east-1", "lake"


@contextmanager
def object_store(secret: str) -> Iterator[str]:
    """The address of a store with an empty bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        address = f"http://127.0.0.1:{port}"
        s3_client(address, secret).create_bucket(Bucket=BUCKET)
        yield address
    finally:
        server.terminate()
        server.wait()


def s3_client(address: str, secret: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=address, region_name=REGION, aws_access_key_id=KEY_ID, aws_secret_access_key=secret
    )


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the object store does not start")
