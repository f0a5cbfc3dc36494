"""What a key makes of values: hashes, numbers that look random, permutations, and ciphers.

Everything is derived from one secret, for one purpose each, so that what one transformer makes of a value says nothing
about what another makes of it. Equal values have equal results, whatever their table, column, run or path.

Hashes are HMAC-SHA-256, one for each value; from there on whole columns are computed by numpy. Permutations are
Feistel networks over AES, which encrypts the blocks of a whole column in one call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.config.secrets import resolve_key
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

Digests = NDArray[np.uint8]
Numbers = NDArray[np.uint64]

DIGEST = 32
_BLOCK = 64  # of SHA-256
_ROUNDS = 10
_INSTALL = "Install it on every machine: pip install 'airflow-provider-pgetl[transform]'."


class Key:
    """A secret, and what is derived from it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def derived(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, f"pgetl transform {purpose}".encode(), "sha256")

    @cached_property
    def fingerprint(self) -> str:
        """Returns what differs between keys, and does not lead to the key."""
        return self.derived("fingerprint")[:8].hex()

    def digests(self, values: pa.Array, purpose: str) -> Digests:
        """Returns 32 bytes for each of these texts, as a matrix."""
        data = _hmacs(self.derived(purpose), values.cast(pa.large_binary()).to_pylist())
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, DIGEST)

    def permuted(self, numbers: Numbers, bits: int, purpose: str) -> Numbers:
        """Returns a permutation of the numbers below ``2**bits``, for `bits` of 15, 31 or 63.

        The network permutes numbers of one bit more. A number that it leads out of the range is permuted again until it
        is in the range, which is a permutation of the range.
        """
        encrypt = _aes(self.derived(purpose))
        found = _feistel(numbers, (bits + 1) // 2, encrypt)
        while (outside := np.flatnonzero(found >> np.uint64(bits))).size:
            found[outside] = _feistel(found[outside], (bits + 1) // 2, encrypt)
        return found

    def siv(self) -> AESSIV:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        except ImportError:
            raise lacking("cryptography") from None
        return AESSIV(self.derived("encrypt 1") + self.derived("encrypt 2"))


def _hmacs(key: bytes, texts: Sequence[bytes]) -> bytes:
    """Returns the HMAC-SHA-256 of each text. The states of SHA-256 after the padded key are computed once, which takes
    less than half of the time of `hmac.digest` for each."""
    padded = key.ljust(_BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))
    made = []
    for text in texts:
        first, second = inner.copy(), outer.copy()
        first.update(text)
        second.update(first.digest())
        made.append(second.digest())
    return b"".join(made)


def lacking(library: str) -> PgetlError:
    return PgetlError(ErrorKind.CONFIG, f"The library {library} is not installed.", remedy=_INSTALL)


class Keys:
    """The keys of a pipeline, by their references. They are read when they are first used; `secrets` holds those that
    were read elsewhere, or all if nothing may be read here."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._keys = {reference: Key(secret) for reference, secret in secrets.items()}

    def __getitem__(self, reference: str) -> Key:
        return self._keys[reference]

    @classmethod
    def resolved(cls, references: frozenset[str], environment: Mapping[str, str]) -> Keys:
        return cls({one: resolve_key(one, environment) for one in references})


# -- Numbers and texts from digests. -----------------------------------------------------------------------------------


def number(digests: Digests, part: int = 0) -> Numbers:
    """Returns a number of 64 bits from each digest; there are four independent `part`s."""
    return np.ascontiguousarray(digests[:, 8 * part : 8 * part + 8]).view(">u8")[:, 0].astype(np.uint64)


def fraction(digests: Digests, part: int = 0) -> NDArray[np.float64]:
    """Returns a number from 0 to below 1 from each digest."""
    return (number(digests, part) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def hexadecimal(digests: Digests, length: int) -> pa.Array:
    """Returns the first `length` hex digits of each digest."""
    nibbles = np.empty((len(digests), 2 * digests.shape[1]), dtype=np.uint8)
    nibbles[:, ::2], nibbles[:, 1::2] = digests >> 4, digests & 15
    return texts_of_width(_HEX[nibbles[:, :length]])


def base64_text(digests: Digests, length: int) -> pa.Array:
    padded = np.zeros((len(digests), 33), dtype=np.uint8)
    padded[:, :DIGEST] = digests
    letters = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), dtype=np.uint8).reshape(-1, 44)
    return texts_of_width(letters[:, :length])


def texts_of_width(letters: NDArray[np.uint8]) -> pa.Array:
    """Returns the rows of a matrix of ASCII letters as texts."""
    count, width = letters.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.large_string(), count, buffers)


_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


# -- Permutations. -----------------------------------------------------------------------------------------------------


class _Aes:
    """AES on blocks of 16 bytes that are independent of each other."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise lacking("cryptography") from None
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    def __call__(self, halves: Numbers, turn: int) -> Numbers:
        blocks = np.zeros((len(halves), 2), dtype=">u8")
        blocks[:, 0], blocks[:, 1] = turn, halves
        made = self._cipher.encryptor().update(blocks.tobytes())
        return np.frombuffer(made, dtype=">u8").reshape(-1, 2)[:, 0].astype(np.uint64)


def _aes(key: bytes) -> _Aes:
    return _Aes(key)


def _feistel(numbers: Numbers, half: int, encrypt: _Aes) -> Numbers:
    """Returns a permutation of the numbers of ``2 * half`` bits."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = (numbers >> bits) & mask, numbers & mask
    for turn in range(_ROUNDS):
        left, right = right, left ^ (encrypt(right, turn) & mask)
    return np.asarray((left << bits) | right, dtype=np.uint64)
