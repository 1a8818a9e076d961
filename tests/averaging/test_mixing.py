"""Mixing matrices are doubly stochastic, keep the mean, and agree as fast as their spectral gap says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.averaging.mixing import (
    Mixing,
    check_doubly_stochastic,
    complete,
    exponential,
    is_symmetric,
    one_peer_exponential,
    ring,
    spectral_gap,
)

GRAPHS = (ring, exponential, one_peer_exponential, complete)
graphs = st.sampled_from(GRAPHS)
workers = st.integers(1, 40)


def product(mixing: Mixing) -> np.ndarray:
    """The product of all matrices of a mixing, the one of step 0 first applied."""
    total = np.eye(mixing.workers)
    for step in range(len(mixing.rounds)):
        total = mixing.matrix(step) @ total
    return total


@st.composite
def mixings(draw: st.DrawFn) -> Mixing:
    """A circulant with any offsets and weights."""
    number = draw(st.integers(1, 12))
    rounds = []
    for _ in range(draw(st.integers(1, 3))):
        offsets = draw(st.lists(st.integers(0, number - 1), min_size=1, unique=True))
        parts = [draw(st.integers(1, 9)) for _ in offsets]
        rounds.append(tuple((offset, part / sum(parts)) for offset, part in zip(offsets, parts, strict=True)))
    return Mixing(number, tuple(rounds))


@given(graphs, workers, st.integers(0, 100))
@settings(deadline=None)
def test_each_matrix_of_each_graph_is_doubly_stochastic(graph, number, step):
    check_doubly_stochastic(graph(number).matrix(step))


@given(mixings(), st.integers(0, 5))
@settings(deadline=None)
def test_any_offsets_make_a_doubly_stochastic_matrix(mixing, step):
    check_doubly_stochastic(mixing.matrix(step))


@given(st.one_of(mixings(), st.builds(lambda graph, number: graph(number), graphs, workers)), st.integers(0, 9))
@settings(deadline=None)
def test_mixed_is_the_product_with_the_matrix_and_keeps_the_mean(mixing, step):
    values = np.random.default_rng(7).normal(size=(mixing.workers, 2, 3))
    mixed = mixing.mixed(values, step=step)
    np.testing.assert_allclose(mixed, np.einsum("ij,jkl->ikl", mixing.matrix(step), values), atol=1e-14)
    np.testing.assert_allclose(mixed.mean(axis=0), values.mean(axis=0), atol=1e-14)


@given(mixings(), st.integers(0, 5))
@settings(deadline=None)
def test_peers_are_the_entries_of_the_matrix(mixing, step):
    matrix = mixing.matrix(step)
    np.fill_diagonal(matrix, 0)
    for worker in range(mixing.workers):
        assert set(mixing.receives_from(worker=worker, step=step)) == set(np.flatnonzero(matrix[worker]))
        assert set(mixing.sends_to(worker=worker, step=step)) == set(np.flatnonzero(matrix[:, worker]))


@given(mixings())
@settings(deadline=None)
def test_symmetry_is_that_of_all_matrices(mixing):
    matrices = [mixing.matrix(step) for step in range(len(mixing.rounds))]
    assert is_symmetric(mixing) == all(np.allclose(matrix, matrix.T, rtol=0, atol=1e-12) for matrix in matrices)


@given(st.one_of(mixings(), st.builds(lambda graph, number: graph(number), graphs, workers)))
@settings(deadline=None)
def test_the_spectral_gap_is_that_of_the_dense_eigenvalues_and_bounds_the_distance_from_the_mean(mixing):
    dense = product(mixing)
    eigenvalues = np.sort(np.abs(np.linalg.eigvals(dense)))
    expected = 1 - (eigenvalues[-2] if mixing.workers > 1 else 0)
    # The eigenvalue 0 of a matrix that has it several times is found with the square root of the precision or worse.
    assert spectral_gap(mixing) == pytest.approx(expected, abs=1e-4)
    # For a circulant the second singular value is the second eigenvalue, and is found with the full precision.
    averaging = np.full_like(dense, 1 / mixing.workers)
    assert spectral_gap(mixing) == pytest.approx(1 - np.linalg.norm(dense - averaging, 2), abs=1e-12)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 16, 64, 1024])
def test_the_gap_of_a_ring_is_the_closed_form(number):
    second = 0.0 if number == 2 else abs(1 + 2 * math.cos(2 * math.pi / number)) / 3
    assert spectral_gap(ring(number)) == pytest.approx(1 - second, abs=1e-12)


@pytest.mark.parametrize("number", [4, 16, 64, 1024])
def test_the_gap_of_the_static_exponential_graph_is_the_closed_form(number):
    # Ying et al., proposition 1: 2 / (1 + ceil(log2 n)) for an even n.
    assert spectral_gap(exponential(number)) == pytest.approx(2 / (1 + math.log2(number)), abs=1e-12)


@pytest.mark.parametrize("number", [2, 4, 8, 64])
def test_one_peer_steps_of_a_power_of_two_make_the_exact_mean(number):
    np.testing.assert_allclose(product(one_peer_exponential(number)), 1 / number, atol=1e-15)
    assert spectral_gap(one_peer_exponential(number)) == pytest.approx(1, abs=1e-12)


def test_one_peer_steps_of_another_number_do_not_make_the_exact_mean():
    assert spectral_gap(one_peer_exponential(6)) < 1


def test_which_graphs_are_symmetric():
    assert [[is_symmetric(graph(number)) for graph in GRAPHS] for number in (2, 3, 4, 9)] == [
        [True, True, True, True],
        [True, True, False, True],
        [True, False, False, True],
        [True, False, False, True],
    ]


def test_mixings_are_values():
    assert ring(5) == ring(5)
    assert hash(ring(5)) == hash(ring(5))
    assert ring(5) != ring(6)
    with pytest.raises(AttributeError):
        ring(5).workers = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5]], r"a square mixing matrix, received the shape \(1, 2\)"),
        ([[1.5, -0.5], [-0.5, 1.5]], "no negative entry of the mixing matrix, received -0.5"),
        ([[0.5, 0.4], [0.4, 0.6]], "each row of the mixing matrix to sum to 1, received 0.9 for row 0"),
        ([[0.5, 0.5], [0.4, 0.6]], "each column of the mixing matrix to sum to 1"),
        ([[math.nan, 0.5], [0.5, 0.5]], "no negative entry"),
    ],
)
def test_a_matrix_that_is_not_doubly_stochastic_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        check_doubly_stochastic(np.array(matrix))


@pytest.mark.parametrize(
    ("number", "rounds", "message"),
    [
        (0, (((0, 1.0),),), "at least 1 worker, received 0"),
        (2, (), "at least one mixing matrix, received none"),
        (2, (((0, 0.5), (2, 0.5)),), r"offsets from 0 to 1, received \[0, 2\]"),
        (2, (((0, 0.5), (0, 0.5)),), r"different offsets from 0 to 1, received \[0, 0\]"),
        (2, (((0, 0.5), (1, 0.4)),), r"sum to 1, received \[0.5, 0.4\]"),
        (2, (((0, 1.5), (1, -0.5)),), r"weights of 0 or more that sum to 1"),
    ],
)
def test_rounds_that_are_no_mixing_are_refused(number, rounds, message):
    with pytest.raises(ValueError, match=message):
        Mixing(number, rounds)


@pytest.mark.parametrize("graph", GRAPHS)
def test_no_workers_are_refused(graph):
    with pytest.raises(ValueError, match="at least 1 worker"):
        graph(0)


def test_values_of_another_number_of_workers_are_refused():
    with pytest.raises(ValueError, match="values of 3 workers, received those of 2"):
        ring(3).mixed(np.zeros((2, 1)), step=0)
