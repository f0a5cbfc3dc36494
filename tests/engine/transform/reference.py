"""Transformers once more, as plainly as possible: one value at a time, and nothing of the engine's code."""

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SECRET = "a key of the tests, long enough"


def derived(purpose: str) -> bytes:
    return hmac.new(SECRET.encode(), f"pgetl transform {purpose}".encode(), hashlib.sha256).digest()


def digest(purpose: str, text: str) -> bytes:
    return hmac.new(derived(purpose), text.encode(), hashlib.sha256).digest()


def hashed(text: str | None, length: int = 64) -> str | None:
    return None if text is None else digest("hash", text).hex()[:length]


def email(text: str | None, domain: str = "example.com") -> str | None:
    return None if text is None else f"{digest('email', text).hex()[:20]}@{domain}"


def masked(text: str | None) -> str | None:
    return None if text is None else "*" * len(text)


def integer(number: int | None, bits: int = 64) -> int | None:
    """A permutation of the numbers from 0 on: ten rounds of a Feistel network, until the result has no sign."""
    if number is None:
        return None
    if number < 0:
        return ~_permuted(~number, bits, "integer below zero")
    return _permuted(number, bits, "integer")


def _permuted(number: int, bits: int, purpose: str) -> int:
    half = bits // 2
    encryptor = Cipher(algorithms.AES(derived(purpose)), modes.ECB()).encryptor()
    while True:
        left, right = number >> half, number & ((1 << half) - 1)
        for turn in range(10):
            block = encryptor.update(turn.to_bytes(8, "big") + right.to_bytes(8, "big"))
            left, right = right, left ^ (int.from_bytes(block[:8], "big") & ((1 << half) - 1))
        number = left << half | right
        if number < 1 << (bits - 1):
            return number
