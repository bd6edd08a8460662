"""The filters of sampling, against what they are defined to keep."""

import math

import mlx.core as mx
import numpy as np
import pytest

from omlxd.backend.mlx.sampling import keep_best, keep_likely, keep_nucleus

PROBABILITIES = [[0.4, 0.1, 0.3, 0.15, 0.05], [0.05, 0.05, 0.7, 0.1, 0.1]]


def kept(filtered: mx.array) -> list[set[int]]:
    return [
        {i for i, value in enumerate(row) if value > -math.inf}
        for row in np.array(filtered).tolist()
    ]


@pytest.fixture
def logprobs() -> mx.array:
    return mx.log(mx.array(PROBABILITIES))


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-9, [{0}, {2}]),
        (0.39, [{0}, {2}]),
        (0.41, [{0, 2}, {2}]),
        (0.71, [{0, 2, 3}, {2, 3, 4}]),
        (0.999, [{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}]),
    ],
)
def test_the_nucleus_is_the_fewest_tokens_that_reach_the_mass(
    logprobs: mx.array, top_p: float, expected: list[set[int]]
) -> None:
    assert kept(keep_nucleus(logprobs, top_p)) == expected


@pytest.mark.parametrize(
    ("min_p", "expected"), [(1.0, [{0}, {2}]), (0.3, [{0, 2, 3}, {2}]), (0.01, [set(range(5))] * 2)]
)
def test_min_p_keeps_what_is_likely_beside_the_best(
    logprobs: mx.array, min_p: float, expected: list[set[int]]
) -> None:
    assert kept(keep_likely(logprobs, min_p)) == expected


def test_top_k_keeps_exactly_so_many(logprobs: mx.array) -> None:
    assert kept(keep_best(logprobs, 1)) == [{0}, {2}]
    assert kept(keep_best(logprobs, 3))[0] == {0, 2, 3}
    assert [len(row) for row in kept(keep_best(mx.zeros((2, 50)), 7))] == [7, 7]


def test_what_is_kept_keeps_its_value(logprobs: mx.array) -> None:
    for filtered in (keep_nucleus(logprobs, 0.5), keep_likely(logprobs, 0.3)):
        same = mx.where(filtered > -math.inf, filtered == logprobs, True)
        assert bool(mx.all(same))
