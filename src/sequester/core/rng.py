"""The one place that makes randomness.

Private noise, sampling and masks come from `Keystream`: AES-256 in counter mode under a
256-bit key of the operating system. The nonce binds every block to a run, a purpose and a
step, so no block can serve twice and a resumed run continues exactly where it stopped.
Sources: NIST SP 800-38A (CTR), SP 800-90A for the construction's security argument.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from sequester.core.errors import SequesterError, UsageError

KEY_BYTES = 32


def fresh_key() -> bytes:
    """A new 256-bit key from the operating system."""
    return os.urandom(KEY_BYTES)


def key_from_test_seed(seed: int) -> bytes:
    """A reproducible key for tests; whoever uses it must stamp the result NOT PRIVATE."""
    return hashlib.sha256(b"sequester insecure test seed" + str(int(seed)).encode()).digest()


@dataclass
class Keystream:
    """Bytes indistinguishable from random, addressed by (run, purpose, step).

    Attributes:
        key: 32 secret bytes; never logged, excluded from `repr`.
        run: The run's identifier; two runs under one key share no block.
        purpose: What the bytes are for ("noise", "sampling", …); purposes share no block.
    """

    key: bytes = field(repr=False)
    run: str
    purpose: str
    _process: int = field(default_factory=os.getpid, repr=False)

    def __post_init__(self) -> None:
        """Check the key's length."""
        if len(self.key) != KEY_BYTES:
            raise UsageError(203, f"a noise key has {KEY_BYTES} bytes, got {len(self.key)}")

    def pieces(
        self, step: int, count: int, *, size: int, rank: int = 0, meets: bytes = b""
    ) -> Iterator[memoryview]:
        """The bytes of `bytes` in pieces of `size`, each written over the one before.

        Fresh memory costs more than the cipher: a large draw in one piece spends most of its time
        in page faults.

        Args:
            step: See `bytes`; so are `count`, `rank` and `meets`.
            count: See `step`.
            size: Bytes of a piece; the last one may be shorter.
            rank: See `step`.
            meets: See `step`.
        """
        encryptor = self._encryptor(step, rank, meets)
        zeros, buffer = zero_bytes(min(size, count)), bytearray(min(size, count) + 15)
        for start in range(0, count, size):
            stop = min(size, count - start)
            encryptor.update_into(memoryview(zeros)[:stop], buffer)
            yield memoryview(buffer)[:stop]

    def _encryptor(self, step: int, rank: int, meets: bytes) -> CipherContext:
        if os.getpid() != self._process:
            raise SequesterError(
                204,
                "this process is a fork of the one that opened the noise stream and would repeat "
                "its noise; open a stream in the child",
            )
        if step < 0 or rank < 0:
            raise UsageError(205, f"step and rank must be ≥ 0, got {step} and {rank}")
        label = f"{len(self.run)}:{self.run}|{len(self.purpose)}:{self.purpose}|{rank}|{step}"
        if meets:
            label += f"|{meets.hex()}"
        # Each address gets a key of its own, so counters never run into a neighbour's range.
        block_key = hashlib.blake2b(label.encode(), key=self.key, digest_size=KEY_BYTES).digest()
        return Cipher(algorithms.AES(block_key), modes.CTR(zero_bytes(16))).encryptor()

    def uniforms(self, step: int, count: int, *, rank: int = 0) -> np.ndarray:
        """`count` float64 uniforms on [0, 1) with 53 random bits, shape `(count,)`."""
        words = np.frombuffer(self.bytes(step, 8 * count, rank=rank), dtype="<u8")
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def bytes(self, step: int, count: int, *, rank: int = 0, meets: bytes = b"") -> bytes:
        """The first `count` bytes of the block (run, purpose, rank, step, meets).

        The same arguments give the same bytes: the caller draws each step once and persists
        the step before using it.

        Args:
            step: Which block.
            count: Bytes.
            rank: Of the process.
            meets: Digest of what the bytes will be added to; another one gives another block.

        Raises:
            SequesterError: SQ-204 in a forked child, which would repeat its parent's noise.
        """
        return self._encryptor(step, rank, meets).update(zero_bytes(count))


def zero_bytes(count: int) -> bytes:
    """`count` zero bytes: the plaintext whose encryption is the keystream."""
    return b"\x00" * count


def public_generator(seed: int) -> np.random.Generator:
    """A fast generator for what is public: initial weights, simulated data, audit designs.

    Never for noise, sampling of people or masks.
    """
    return np.random.Generator(np.random.Philox(int(seed)))
