"""Codecs: wire form, measured bytes, hostile bytes, error feedback."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.core.errors import UsageError
from sequester.federated.compression import (
    Feedback,
    LowRank,
    Quantise,
    RandomK,
    TopK,
)
from sequester.federated.compression.codecs import Address
from sequester.federated.compression.quantise import pack, unpack
from sequester.federated.compression.sparse import parse_varints, varints
from sequester.federated.messages import Layout, Reason, Rejection

LAYOUT = Layout(("cell", "bias", "head"), ((96, 32), (96,), (6, 32)))
HERE = Address("run", 0, 4)
CODECS = [TopK(0.01), RandomK(0.01), Quantise(4), Quantise(1), LowRank(2)]


def vector(seed=0):
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def test_top_k_by_hand():
    layout = Layout(("w",), ((6,),))
    codec = TopK(0.34)
    message = codec.encode(np.array([0, -5, 1, 0, 4, 0], np.float32), layout, HERE)
    # header 7 bytes, gaps 1 and 2, then −5 and 4 as float32
    assert message == b"SQ\x01\x06\x00\x00\x00" + bytes([1, 2]) + np.float32([-5, 4]).tobytes()
    np.testing.assert_array_equal(codec.decode(message, layout, HERE), [0, -5, 0, 0, 4, 0])


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_both_ends_agree_and_the_kept_part_is_exact(codec):
    original = vector()
    seen = codec.decode(codec.encode(original, LAYOUT, HERE), LAYOUT, HERE)
    assert seen.dtype == np.float32
    assert seen.shape == original.shape
    if isinstance(codec, TopK | RandomK):
        kept = seen != 0
        assert kept.sum() == round(0.01 * LAYOUT.size)
        np.testing.assert_array_equal(seen[kept], original[kept])
    if isinstance(codec, TopK):
        assert np.abs(original[~kept]).max() <= np.abs(original[kept]).min()


def test_measured_bytes_of_one_per_cent():
    wide = Layout(("w",), ((128, 1000),))
    numbers = np.random.default_rng(0).normal(size=wide.size).astype(np.float32)
    for codec, least in (
        (TopK(0.01), 70),
        (RandomK(0.01), 99),
        (Quantise(4), 7.9),
        (LowRank(1), 100),
    ):
        assert numbers.nbytes / len(codec.encode(numbers, wide, HERE)) >= least


def test_random_coordinates_are_shared_by_a_cohort_and_change_with_the_round():
    codec = RandomK(0.05)
    first = codec.coordinates(LAYOUT, Address("run", 0, 1))
    np.testing.assert_array_equal(first, codec.coordinates(LAYOUT, Address("run", 0, 2)))
    assert not np.array_equal(first, codec.coordinates(LAYOUT, Address("run", 1, 1)))
    # so messages add: the sum of the decoded is the decoded sum of values
    one, two = vector(1), vector(2)
    added = sum(codec.decode(codec.encode(part, LAYOUT, HERE), LAYOUT, HERE) for part in (one, two))
    np.testing.assert_allclose(added[first], (one + two)[first], rtol=1e-6)


def test_quantisation_is_unbiased_and_within_one_level():
    original = vector()
    codec = Quantise(3)
    rounds = [
        codec.decode(codec.encode(original, LAYOUT, Address("run", r, 0)), LAYOUT, HERE)
        for r in range(400)
    ]
    step = (original.max() - original.min()) / 7
    assert np.abs(rounds[0] - original).max() <= step * 1.001
    error = np.mean(rounds, axis=0) - original
    # a coordinate's coin has deviation ≤ step/2, over 400 rounds step/40; 5 of those
    assert np.abs(error).max() < 5.5 * step / 40


def test_low_rank_recovers_a_matrix_of_its_rank():
    generator = np.random.default_rng(0)
    layout = Layout(("w", "b"), ((30, 20), (5,)))
    matrix = generator.normal(size=(30, 2)) @ generator.normal(size=(2, 20))
    original = np.concatenate([matrix.reshape(-1), np.arange(5)]).astype(np.float32)
    codec = LowRank(2)
    seen = codec.decode(codec.encode(original, layout, HERE), layout, HERE)
    np.testing.assert_allclose(seen, original, atol=2e-5)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(CODECS))
def test_hostile_bytes_are_malformed_or_a_vector(data, codec):
    for message in (data, b"SQ" + bytes([codec.number]) + LAYOUT.size.to_bytes(4, "little") + data):
        seen = decode_or_reason(codec, message)
        assert seen is Reason.MALFORMED or seen.shape == (LAYOUT.size,)


def decode_or_reason(codec, message):
    try:
        return codec.decode(message, LAYOUT, HERE)
    except Rejection as rejection:
        return rejection.reason


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_cut_extended_or_foreign_messages_are_malformed(codec):
    message = codec.encode(vector(), LAYOUT, HERE)
    other = Layout(("cell",), ((7, 7),))
    for broken, layout in (
        (message[:-1], LAYOUT),
        (message + b"\x00", LAYOUT),
        (b"XX" + message[2:], LAYOUT),
        (message[:2] + b"\xee" + message[3:], LAYOUT),
        (message, other),
        (b"", LAYOUT),
    ):
        with pytest.raises(Rejection) as caught:
            codec.decode(broken, layout, HERE)
        assert caught.value.reason is Reason.MALFORMED


@given(st.lists(st.integers(0, 2**34), max_size=50))
def test_varints_round_trip(values):
    array = np.array(values, dtype=np.int64)
    np.testing.assert_array_equal(parse_varints(varints(array), len(values)), array)


@given(st.integers(1, 16), st.integers(0, 200), st.integers(0, 2**32))
def test_packing_round_trips(bits, count, seed):
    levels = np.random.default_rng(seed).integers(0, 2**bits, count).astype(np.uint32)
    packed = pack(levels, bits)
    assert len(packed) == -(-count * bits // 8)
    np.testing.assert_array_equal(unpack(packed, count, bits), levels)


def test_error_feedback_by_hand():
    layout = Layout(("w",), ((4,),))
    feedback = Feedback(TopK(0.25), layout)
    delta = np.array([3, 2, 0, -1], dtype=np.float32)
    sent = [
        feedback.decode(feedback.encode(delta, Address("run", r, 0)), Address("run", r, 0))
        for r in range(3)
    ]
    # owed: (3,2,0,−1) → 3;  (3,4,0,−2) → 4;  (6,2,0,−3) → 6
    np.testing.assert_array_equal(sent, [[3, 0, 0, 0], [0, 4, 0, 0], [6, 0, 0, 0]])
    np.testing.assert_array_equal(feedback.residuals[0], [0, 2, 0, -3])


@pytest.mark.parametrize("codec", [TopK(0.05), RandomK(0.05), LowRank(1)], ids=repr)
def test_nothing_is_lost_in_the_long_run(codec):
    feedback = Feedback(codec, LAYOUT)
    total, seen = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for r in range(60):
        delta, here = vector(r), Address("run", r, 0)
        total += delta
        seen += feedback.decode(feedback.encode(delta, here), here)
    np.testing.assert_allclose(seen + feedback.residuals[0], total, atol=1e-3)


def test_settings_that_mean_nothing_are_refused():
    for make, number in (
        (lambda: TopK(0.0), 609),
        (lambda: RandomK(1.5), 609),
        (lambda: Quantise(0), 610),
        (lambda: LowRank(0), 611),
    ):
        with pytest.raises(UsageError, match=f"SQ-{number}"):
            make()
