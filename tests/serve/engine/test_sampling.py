import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serve.engine.sampling import BLOCK, SEED_BITS, choice_seed, draw_seed, uniform_block, uniforms

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.integers(0, 3 * BLOCK), st.integers(1, BLOCK))
def test_a_uniform_is_a_function_of_seed_and_position_alone(
    seed: int, start: int, count: int
) -> None:
    whole = np.concatenate([uniform_block(seed, block) for block in range(5)])
    np.testing.assert_array_equal(uniforms(seed, start, count), whole[start : start + count])


@given(seeds)
def test_uniforms_are_multiples_of_two_to_the_minus_23_below_one(seed: int) -> None:
    values = uniform_block(seed, 0)
    assert values.dtype == np.float32
    assert (values >= 0).all() and (values < 1).all()
    scaled = values.astype(np.float64) * 2**23
    np.testing.assert_array_equal(scaled, np.round(scaled))


def test_no_uniform_rounds_a_total_up_to_itself() -> None:
    largest = np.float32(1 - 2**-23)
    totals = np.random.default_rng(0).random(10_000).astype(np.float32)
    assert (largest * totals < totals).all()


def test_uniforms_are_uniform() -> None:
    values = np.concatenate([uniform_block(7, block) for block in range(400)])
    counts, _ = np.histogram(values, bins=10, range=(0, 1))
    assert abs(counts / len(values) - 0.1).max() < 0.005


@given(seeds, st.integers(0, 200))
def test_each_choice_has_a_seed_of_its_own_and_the_first_the_requests(
    seed: int, index: int
) -> None:
    found = [choice_seed(seed, i) for i in range(index + 1)]
    assert found[0] == seed
    assert len(set(found)) == len(found)
    assert all(0 <= value < 2**SEED_BITS <= 2**53 for value in found[1:])


def test_drawn_seeds_differ() -> None:
    drawn = {draw_seed() for _ in range(100)}
    assert len(drawn) == 100 and all(seed < 2**53 for seed in drawn)  # exact as a double
