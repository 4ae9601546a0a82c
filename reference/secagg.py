"""Secure aggregation in one file: what `sequester.secagg` says on the wire, and why it works.

The server learns the sum of the vectors of members who stay and nothing else. Neighbours (i, j)
agree on a key by Diffie-Hellman; i adds its keystream to its vector and j takes it away, so they
cancel. Against a vector that arrives late each member adds a keystream of its own seed. Neighbours
hold shares of seed and key and reveal a seed (if its vector arrived) or a key (if not), never
both, once they confirmed the survivors to one another. Everybody is honest here. To be read beside
`docs/secagg-spec.md`.
"""

import hashlib
import hmac
import math
import struct
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LABEL = b"sequester secagg v4 "
P = 65537
PHASES = ("advert", "shares", "masked", "confirm", "reveal")


def u32(*numbers: int) -> bytes:
    """Four bytes each."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 for one purpose."""
    return hashlib.sha256(LABEL + label + b"\0" + b"".join(parts)).digest()


def derive(secret: bytes, label: bytes, context: bytes, count: int = 32) -> bytes:
    """HKDF-SHA256 with an empty salt, from RFC 5869."""
    return HKDF(SHA256(), count, None, LABEL + label + b"\0" + context).derive(secret)


def counter_mode(key: bytes, count: int, first: int) -> bytes:
    """AES in counter mode from block `first`."""
    mode = modes.CTR(first.to_bytes(16, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor().update(bytes(count))


def listed(rows: list[bytes]) -> bytes:
    """How many, then all of them."""
    return u32(len(rows)) + b"".join(rows)


def x25519(private: bytes, point: bytes = bytes([9]) + bytes(31)) -> bytes:
    """The shared secret with a public key; with the base point, the own public key."""
    peer = X25519PublicKey.from_public_bytes(point)
    return X25519PrivateKey.from_private_bytes(private).exchange(peer)


def share(secret: bytes, n: int, t: int, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Shamir over GF(65537), one polynomial per 16-bit word; for each holder, of both halves."""
    words = struct.unpack("<32H", secret)
    block_key = hashlib.blake2b(b"0:|13:secagg shares|0|0", key=key, digest_size=32).digest()
    draws = struct.unpack(f"<{32 * (t - 1)}Q", counter_mode(block_key, 256 * (t - 1), 0))
    curves = [(word, *draws[w::32]) for w, word in enumerate(words)]
    for x in range(1, n + 1):  # 16 bits of each word, then one bit each for the value 65536.
        row = [sum(c * x**e for e, c in enumerate(f)) % P for f in curves]
        low, marks = packed([v & 0xFFFF for v in row], 16), packed([v >> 16 for v in row], 1)
        yield low[:32] + marks[:2], low[32:] + marks[2:]


def recover(shares: dict[int, bytes]) -> bytes:
    """Lagrange's interpolation at 0 of half a secret, from shares by their x."""
    out = [0] * 16
    for x, data in shares.items():
        *low, marks = struct.unpack("<17H", data)
        weight = math.prod(other * pow(other - x, -1, P) for other in shares if other != x)
        out = [(out[w] + weight * (low[w] + ((marks >> w & 1) << 16))) % P for w in range(16)]
    return struct.pack("<16H", *out)


def packed(words: list[int], bits: int) -> bytes:
    """Words of `bits` bits, the first lowest."""
    whole = sum(word << bits * place for place, word in enumerate(words))
    return whole.to_bytes((len(words) * bits + 7) // 8, "little")


def transcript(s: dict, identities: list[bytes], secrets: list[bytes], vectors, drops) -> dict:
    """Play one round: all messages, the sum. `drops`: member → phase in which it falls silent."""
    t, bits, width, name = s["threshold"], s["bits"], s["wide"], s["run"].encode()
    lasts = [PHASES.index(drops[i]) if i in drops else 9 for i in range(len(secrets))]
    joined, dealt, alive, confirming, last = (
        [i for i in range(len(secrets)) if lasts[i] > phase] for phase in range(5)
    )
    encoded = bytes([len(name)]) + name + struct.pack("<Q", s["round_number"])
    encoded += s["model"] + s["config"] + s["roster"] + struct.pack("<HH", t, s["degree"])
    encoded += struct.pack("<IHB", s["length"], width, bits)
    encoded += u32(s["min_cohort"], s["min_survivors"]) + bytes([s["active"]])
    session = digest(b"session", encoded)
    said = {"offer": b"SQSA" + bytes([4, 1]) + bytes(16) + encoded}

    def say(kind: int, name: str, body: bytes) -> None:
        said[name] = b"SQSA" + bytes([4, kind]) + session[:16] + body

    # 1. Fresh keys and a nonce, signed; every member checks its neighbours' signatures.
    channel = [derive(x, b"channel key", session) for x in secrets]
    mask = [derive(x, b"mask key", session) for x in secrets]
    nonce = [derive(x, b"nonce", session, 4) for x in secrets]
    shown = [x25519(a) + x25519(b) for a, b in zip(channel, mask, strict=True)]
    signature = {}
    for i in joined:
        signed = LABEL + b"advert\0" + session + u32(i) + shown[i] + nonce[i]
        key = Ed25519PrivateKey.from_private_bytes(identities[i])
        signature[i] = key.sign(signed) if s["active"] else bytes(64)
        say(2, f"advert {i}", u32(i) + shown[i] + signature[i] + nonce[i])
    entries = [u32(i) + nonce[i] for i in joined]
    cohort = digest(b"cohort", session, *entries)
    ring = sorted(joined, key=lambda i: hashlib.sha256(cohort + u32(i)).digest())
    reach, place = s["degree"] // 2 or len(ring), {i: at for at, i in enumerate(ring)}
    steps = {(i, j): (place[i] - place[j]) % len(ring) for i in joined for j in joined}
    near = {i: [j for j in joined if 0 < min(steps[i, j], steps[j, i]) <= reach] for i in joined}
    holders = near if s["degree"] else dict.fromkeys(joined, joined)
    for i in joined:
        others = listed([u32(j) + shown[j] + signature[j] for j in near[i]])
        say(3, f"peers {i}", listed(entries) + others)

    # 2. Seed and key, shared among the holders under pairwise keys.
    def pair(i: int, j: int) -> bytes:
        return cohort + u32(min(i, j), max(i, j))

    def channel_keys(i: int, j: int) -> bytes:
        secret = x25519(channel[i], x25519(channel[j]))
        return derive(secret, b"channel", pair(i, j) + shown[min(i, j)] + shown[max(i, j)], 64)

    def pair_key(private: bytes, i: int, j: int) -> bytes:
        return derive(x25519(private, x25519(mask[j])), b"pair mask", pair(i, j), 16)

    seed, share_of, checks, sealed = [derive(x, b"self mask", cohort) for x in secrets], {}, {}, {}
    for i in dealt:
        key = derive(secrets[i], b"shares", cohort)
        shares = share(seed[i] + mask[i], len(holders[i]), t, key)
        for j, two in zip(holders[i], shares, strict=True):  # The one for itself stays at home.
            share_of[i, j], ids = two, u32(i, j)
            checks[i, j] = [digest(b"share", cohort, bytes([k]), ids, two[k])[:16] for k in (0, 1)]
            aead, nonce_ = AESGCM(channel_keys(i, j)[:32]), bytes(11) + bytes([1 if i < j else 2])
            both = digest(b"checks", cohort, ids, *checks[i, j])[:16]
            sealed[i, j] = both, aead.encrypt(nonce_, b"".join(two), cohort + ids + both)
        head = u32(i) + digest(b"commitment", cohort, u32(i), seed[i])
        head += checks[i, i][0] if i in holders[i] else bytes(16)
        mine = [u32(j) + b"".join(checks[i, j]) + sealed[i, j][1] for j in near[i]]
        say(4, f"shares {i}", head + listed(mine))
    for i in dealt:
        boxes = [u32(j) + b"".join(sealed[j, i]) for j in near[i] if j in dealt]
        say(5, f"sealed {i}", listed(boxes))

    # 3. Masked vectors: + own seed, + keys of higher members, − keys of lower ones.
    def mixed(words: list[int], streams: list[tuple[int, bytes]]) -> list[int]:
        form = f"<{width}I{s['length']}{'H' if bits == 16 else 'I'}"
        for sign, key in streams:
            stream = struct.unpack(form, counter_mode(key, struct.calcsize(form), 2))
            words = [w + sign * k for w, k in zip(words, stream, strict=True)]
        return [w % 2**32 for w in words[:width]] + [w % 2**bits for w in words[width:]]

    total = [0] * (width + s["length"])
    for i in alive:
        streams = [(1, derive(seed[i], b"self mask", cohort + u32(i), 16))]
        streams += [(1 if i < j else -1, pair_key(mask[i], i, j)) for j in near[i] if j in dealt]
        words = mixed(vectors[i][1] + vectors[i][0], streams)
        total = list(map(sum, zip(total, words, strict=True)))
        say(6, f"masked {i}", u32(i) + packed(words[width:], bits) + u32(*words[:width]))

    # 4. Everybody confirms the survivors to its neighbours, unless the server is trusted to tell.
    survivors = packed([i in alive for i in joined], 1)
    say(7, "survivors", u32(len(survivors)) + survivors)

    def tag(i: int, j: int) -> bytes:
        text = b"confirm\0" + digest(b"survivors", cohort, survivors) + u32(i, j)
        return hmac.digest(channel_keys(i, j)[32:], text, "sha256")[:16]

    for i in confirming if s["active"] else []:
        say(8, f"confirm {i}", u32(i) + listed([u32(j) + tag(i, j) for j in near[i] if j in alive]))
        tags = [u32(j) + tag(j, i) for j in near[i] if j in confirming]
        say(9, f"confirmed {i}", listed(tags))

    # 5. One kind of share for each member; the server opens and takes the masks off.
    for i in last:
        held = [j for j in dealt if (j, i) in share_of]
        seeds = listed([u32(j) + share_of[j, i][0] for j in held if j in alive])
        keys = listed([u32(j) + share_of[j, i][1] for j in held if j not in alive])
        say(10, f"reveal {i}", u32(i) + seeds + keys + listed([]))
    for i in dealt:
        kind, back = int(i not in alive), [j for j in holders[i] if j in last][:t]
        opened = recover({holders[i].index(j) + 1: share_of[i, j][kind] for j in back})
        if i in alive:
            total = mixed(total, [(-1, derive(opened, b"self mask", cohort + u32(i), 16))])
        else:  # Survivor j holds ± the stream of the pair (j, i).
            left = [j for j in near[i] if j in alive]
            total = mixed(total, [(-1 if j < i else 1, pair_key(opened, i, j)) for j in left])
    return {"messages": said, "sum": (total[width:], total[:width])}
