"""Published answers: primitives, (k, t), discrete Gaussian, Skellam, Shamir."""

import hashlib
import hmac
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from mpmath import mp
from scipy import stats

from sequester.core.errors import SequesterError
from sequester.core.rng import Keystream, key_from_test_seed, public_generator
from sequester.secagg import crypto, field, masks, sampler
from sequester.secagg.graph import Threats, sparse_parameters
from sequester.secagg.session import Roster

WYCHEPROOF = json.loads((Path(__file__).parent / "vectors" / "wycheproof.json").read_text())


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def test_x25519_of_rfc_7748() -> None:
    key = X25519PrivateKey.from_private_bytes(
        unhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    )
    point = unhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    answer = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert crypto.agree(key, point).hex() == answer


def test_x25519_of_wycheproof() -> None:
    refused = 0
    for private, public, shared in WYCHEPROOF["x25519"]:
        key = X25519PrivateKey.from_private_bytes(unhex(private))
        if set(shared) == {"0"}:
            with pytest.raises(SequesterError, match="SQ-722"):
                crypto.agree(key, unhex(public))
            refused += 1
        else:
            assert crypto.agree(key, unhex(public)).hex() == shared
    assert refused == 31


def hkdf(secret: bytes, info: bytes, count: int) -> bytes:
    """RFC 5869 with an empty salt, written from the RFC."""
    key, block, out = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    for index in range(1, 256):
        if len(out) >= count:
            break
        block = hmac.digest(key, block + info + bytes([index]), "sha256")
        out += block
    return out[:count]


def test_hkdf_of_rfc_5869_and_wycheproof() -> None:
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert hkdf(b"\x0b" * 22, b"", 42).hex() == okm  # Test case 3.
    for secret, info, count, answer in WYCHEPROOF["hkdf_sha256_empty_salt"]:
        assert hkdf(unhex(secret), unhex(info), count).hex() == answer
    # Ours is that HKDF with a label in front of the context.
    label = b"sequester secagg v4 purpose\x00"
    assert crypto.derive(b"s" * 32, b"purpose", b"context", 64) == hkdf(
        b"s" * 32, label + b"context", 64
    )


def test_aes_gcm_of_wycheproof(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, nonce, context, plain, sealed, valid in WYCHEPROOF["aes_256_gcm_96_bit_iv"]:
        monkeypatch.setattr(crypto, "_nonce", lambda _, n=nonce: unhex(n))
        opened = crypto.unseal(
            unhex(key), upward=True, ciphertext=unhex(sealed), context=unhex(context)
        )
        assert (opened == unhex(plain)) if valid else (opened is None)


def test_ed25519_of_wycheproof() -> None:
    lenient = 0
    for public, message, signature, valid in WYCHEPROOF["ed25519"]:
        accepted = crypto.is_signed(unhex(public), unhex(signature), unhex(message))
        if accepted == valid:
            continue
        # OpenSSL accepts what only a strict verifier refuses: points outside the prime-order
        # group. A key of low order, the only dangerous kind, is never enrolled.
        assert accepted
        key, point = unhex(public), unhex(signature)[:32]
        if is_identity(times(8, decoded(key))):
            assert not crypto.can_be_enrolled(key)
        else:
            assert has_torsion(key) or has_torsion(point)
        lenient += 1
    assert lenient == 29
    with pytest.raises(SequesterError, match="SQ-723"):
        Roster({0: b"\x01" + bytes(31)})


# Edwards arithmetic from RFC 8032, section 5.1, in Python integers.
Q = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, Q) % Q


def decoded(data: bytes) -> tuple[int, int]:
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, (y & (2**255 - 1)) % Q
    square = (y * y - 1) * pow(D * y * y + 1, -1, Q) % Q
    x = pow(square, (Q + 3) // 8, Q)
    if (x * x - square) % Q:
        x = x * pow(2, (Q - 1) // 4, Q) % Q
    return (Q - x) % Q if x & 1 != sign else x, y


def plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    t = D * a[0] * b[0] * a[1] * b[1] % Q
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + t, -1, Q) % Q
    return x, (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, Q) % Q


def times(factor: int, point: tuple[int, int]) -> tuple[int, int]:
    result = (0, 1)
    while factor:
        result = plus(result, point) if factor & 1 else result
        point, factor = plus(point, point), factor >> 1
    return result


def is_identity(point: tuple[int, int]) -> bool:
    return point == (0, 1)


def has_torsion(data: bytes) -> bool:
    return not is_identity(times(ORDER, decoded(data)))


@pytest.mark.parametrize("as_gcm", [False, True])
def test_masks_are_the_keystream_of_nist(as_gcm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GCM specification, test case 2: zero key, zero nonce, one zero block.
    monkeypatch.setattr(masks, "_gcm_is_faster", lambda: as_gcm)
    words = masks.Words.zeros(1 << 15, 4, 32)
    masks.apply(words, [bytes(16)], [])
    assert words.wide.tobytes().hex() == "0388dace60b6a392f328c2b971b2fe78"
    # Both paths agree far beyond a chunk.
    digest = hashlib.sha256(words.narrow.tobytes()).hexdigest()
    assert digest == _KEYSTREAM_DIGEST


def _expected_keystream() -> str:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    ecb = Cipher(algorithms.AES128(bytes(16)), modes.ECB()).encryptor()
    blocks = b"".join(bytes(12) + (3 + i).to_bytes(4, "big") for i in range((1 << 17) // 16))
    return hashlib.sha256(ecb.update(blocks)).hexdigest()


_KEYSTREAM_DIGEST = _expected_keystream()

# (members, corrupt, dropout, semi-malicious, k, t): google-parfait/federated-compute,
# fcp/secagg/server/graph_parameter_finder_test.cc (Apache-2.0), rows up to 10⁴ members.
PUBLISHED = [
    (100, 0.45, 0.45, False, 92, 46),
    (1000, 0.45, 0.45, False, 822, 417),
    (10, 0.33, 0.33, False, 8, 4),
    (100, 0.33, 0.33, False, 68, 34),
    (1000, 0.33, 0.33, False, 286, 150),
    (10_000, 0.33, 0.33, False, 422, 221),
    (100, 0.3, 0.3, True, 92, 62),
    (1000, 0.3, 0.3, True, 872, 584),
    (10, 0.05, 0.33, False, 4, 2),
    (100, 0.05, 0.33, False, 28, 6),
    (1000, 0.05, 0.33, False, 72, 24),
    (10_000, 0.05, 0.33, False, 86, 29),
    (10, 0.05, 0.33, True, 8, 5),
    (100, 0.05, 0.33, True, 72, 39),
    (1000, 0.05, 0.33, True, 398, 223),
    (10, 0.33, 0.05, False, 4, 4),
    (100, 0.33, 0.05, False, 34, 29),
    (1000, 0.33, 0.05, False, 78, 60),
    (10_000, 0.33, 0.05, False, 92, 70),
    (10, 0.33, 0.05, True, 4, 4),
    (100, 0.33, 0.05, True, 42, 37),
    (1000, 0.33, 0.05, True, 132, 109),
    (10_000, 0.33, 0.05, True, 178, 146),
    (10, 0.05, 0.05, False, 2, 2),
    (100, 0.05, 0.05, False, 12, 6),
    (1000, 0.05, 0.05, False, 30, 17),
    (10_000, 0.05, 0.05, False, 34, 20),
    (100_000, 0.05, 0.05, False, 36, 21),
    (1_000_000, 0.05, 0.05, False, 38, 22),
    (10, 0.05, 0.05, True, 2, 2),
    (100, 0.05, 0.05, True, 16, 11),
    (1000, 0.05, 0.05, True, 52, 37),
    (10_000, 0.05, 0.05, True, 62, 44),
    (100_000, 0.05, 0.05, True, 68, 48),
    (1_000_000, 0.05, 0.05, True, 74, 52),
    (10, 0.33, 0.0, False, 4, 4),
    (1000, 0.33, 0.0, False, 38, 36),
    (1000, 0.33, 0.0, True, 38, 37),
    (1_000_000, 0.33, 0.0, True, 50, 49),
    (10, 0.0, 0.33, False, 4, 2),
    (100, 0.0, 0.33, False, 26, 2),
    (10_000, 0.0, 0.33, False, 42, 2),
    (10, 0.0, 0.33, True, 8, 5),
    (100, 0.0, 0.33, True, 68, 35),
    (1000, 0.0, 0.33, True, 228, 115),
    (1000, 0.0, 0.0, False, 2, 2),
    (1000, 0.0, 0.0, True, 2, 2),
]


@pytest.mark.parametrize("row", PUBLISHED)
def test_degree_and_threshold_match_the_published_table(row: tuple) -> None:
    members, corrupt, dropout, active, degree, threshold = row
    found = sparse_parameters(members, Threats(corrupt, dropout, active))
    # Their test asks for this degree and at most this threshold.
    assert found[0] == degree
    assert found[1] <= threshold


def weights_of(table: sampler.Table) -> list[int]:
    """What the table really draws, times 2¹²⁷, computed back from its cells."""
    cells = len(table.high)
    full = 1 << (sampler.WEIGHT_BITS - table.index_bits)
    weights = [0] * cells
    for cell in range(cells):
        threshold = (int(table.high[cell]) << sampler.TIE_BITS) + int(table.rest[cell])
        weights[cell] += threshold
        weights[int(table.alias[cell]) - table.low] += full - threshold
    return weights


@pytest.mark.parametrize("deviation", [0.25, 1.0, 2.342, 10.0, 100.0])
def test_the_discrete_gaussian_is_exact_to_2_to_the_minus_119(deviation: float) -> None:
    table = sampler.discrete_gaussian(deviation)
    mp.prec = 300
    square = mp.mpf(deviation) ** 2
    reach = -table.low + 50
    mass = [mp.exp(-(mp.mpf(k) ** 2) / (2 * square)) for k in range(reach)]
    total = mass[0] + 2 * sum(mass[1:])
    _compare(table, [m / total for m in mass])


@pytest.mark.parametrize("variance", [0.1, 1.0, 16.0, 400.0])
def test_skellam_is_exact_to_2_to_the_minus_119(variance: float) -> None:
    table = sampler.skellam(variance)
    mp.prec = 300
    scale = mp.exp(-mp.mpf(variance))
    _compare(table, [scale * mp.besseli(k, variance) for k in range(-table.low + 50)])


def _compare(table: sampler.Table, truth: list) -> None:
    weights = weights_of(table)
    assert sum(weights) == 1 << sampler.WEIGHT_BITS
    distance = mp.mpf(0)
    for index in range(-len(truth) + 1, len(truth)):
        at = index - table.low
        drawn = mp.mpf(weights[at]) / 2**127 if 0 <= at < len(weights) else mp.mpf(0)
        distance += abs(drawn - truth[abs(index)]) / 2
    assert distance <= table.distance
    assert table.distance < 2.0**-110


@pytest.mark.parametrize("deviation", [0.7, 3.0, 40.0])
def test_draws_follow_the_table(deviation: float) -> None:
    table = sampler.discrete_gaussian(deviation)
    stream = Keystream(key_from_test_seed(5), run="test", purpose="noise")
    draws = table.draw(400_000, stream, 0)
    values = np.arange(draws.min(), draws.max() + 1)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * deviation**2))
    mass /= np.exp(-(np.arange(-2000, 2001) ** 2) / (2 * deviation**2)).sum()
    counts = np.bincount(draws - values[0], minlength=values.size)
    keep = mass * draws.size > 20
    statistic = ((counts[keep] - mass[keep] * draws.size) ** 2 / (mass[keep] * draws.size)).sum()
    assert stats.chi2.sf(statistic, keep.sum() - 1) > 1e-4
    np.testing.assert_array_equal(draws, table.draw(400_000, stream, 0))
    assert not np.array_equal(draws, table.draw(400_000, stream, 1))


def test_ties_consult_the_second_word() -> None:
    # A table of one cell whose threshold is 2^63·h + r, and a stream that always ties.
    table = sampler.Table(
        low=10,
        index_bits=1,
        high=np.array([5, 5], np.uint64),
        rest=np.array([1 << 62, 1 << 62], np.uint64),
        alias=np.array([-1, -1], np.int32),
        distance=0.0,
    )

    class Fixed(Keystream):
        def bytes(self, step: int, count: int, *, rank: int = 0) -> bytes:
            first = np.full(count // 8, 5, "<u8")
            second = np.tile(np.array([0, 2**64 - 1], "<u8"), count // 16 + 1)[: count // 8]
            return (first if rank % 2 == 0 else second).tobytes()

    draws = table.draw(4, Fixed(bytes(32), run="", purpose=""), 0)
    assert draws.tolist() == [10, -1, 10, -1]


def test_shamir_agrees_with_fractions_modulo_the_prime() -> None:
    draw = public_generator(1)
    for shares, threshold in [(2, 2), (5, 3), (12, 7), (60, 31)]:
        secret = draw.bytes(64)
        random = draw.bytes(field.randomness_bytes(64, threshold))
        dealt = field.split(secret, shares, threshold, random)
        points = sorted(int(p) + 1 for p in draw.permutation(shares)[:threshold])
        rows = dealt[[p - 1 for p in points]]
        assert field.recover(tuple(points), rows) == secret
        # Lagrange at 0 in exact rationals, word by word.
        for word in (0, 31):
            value = Fraction(0)
            for p, y in zip(points, rows[:, word], strict=True):
                basis = math.prod(Fraction(-q, p - q) for q in points if q != p)
                value += int(y) * basis
            modular = value.numerator * pow(value.denominator, -1, field.PRIME) % field.PRIME
            assert modular == int.from_bytes(secret[2 * word : 2 * word + 2], "little")


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    # t − 1 shares of one word: for each candidate there is exactly one polynomial.
    dealt = field.split(b"\x07\x00", 5, 3, bytes(range(16)))
    points = (1, 2)
    for candidate in (0, 7, 65536):
        third = field.recover((1, 2, 3), np.stack([dealt[0], dealt[1], dealt[2]]))
        assert third == b"\x07\x00"
        rows = np.array([[candidate], [dealt[0][0]], [dealt[1][0]]], np.int64)
        # Degree 2 through (0, candidate), (1, y₁), (2, y₂) always exists: solve for it.
        inverse_two = pow(2, -1, field.PRIME)
        second = (rows[2] - 2 * rows[1] + rows[0]) * inverse_two % field.PRIME
        first = (rows[1] - rows[0] - second) % field.PRIME
        for point, row in zip(points, rows[1:], strict=True):
            assert (rows[0] + first * point + second * point**2) % field.PRIME == row


def test_shares_as_bytes_hold_the_largest_residue() -> None:
    share = np.array([65536, 0, 1, 65535] * 4, np.uint32)
    (data,) = field.to_bytes(share[None])
    assert len(data) == field.share_bytes(16) == 34
    np.testing.assert_array_equal(field.from_bytes(data, 16), share)
    broken = bytes([1]) + data[1:]  # Low word 1 beside the bit for 65536: 65537 itself.
    with pytest.raises(SequesterError, match="SQ-716"):
        field.from_bytes(broken, 16)
