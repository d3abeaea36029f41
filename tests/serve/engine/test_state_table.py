import numpy as np

from serve.engine.state_table import StateTable


def table(num_slots: int = 3) -> StateTable:
    return StateTable({"H": np.eye(2, dtype=np.float32)}, num_slots)


def test_a_fresh_slot_holds_the_initial_state_whoever_had_it_before() -> None:
    slots = table(1)
    first = slots.acquire()
    slots.scatter([first], {"next.H": np.full((1, 2, 2), 5, np.float32)})
    slots.release(first)
    assert slots.acquire() == first
    np.testing.assert_array_equal(slots.rows(first)["H"], np.eye(2))


def test_a_slot_may_start_from_another_state() -> None:
    slots = table()
    slot = slots.acquire({"H": np.full((2, 2), 7, np.float32)})
    np.testing.assert_array_equal(slots.rows(slot)["H"], np.full((2, 2), 7.0))
    np.testing.assert_array_equal(slots.rows(slots.acquire())["H"], np.eye(2))


def test_a_released_slot_is_zeroed() -> None:
    slots = table()
    slot = slots.acquire()
    slots.release(slot)
    assert not slots.rows(slot)["H"].any()


def test_scatter_touches_only_its_rows() -> None:
    slots = table()
    a, b, c = (slots.acquire() for _ in range(3))
    slots.scatter([c, a], {"next.H": np.stack([np.full((2, 2), 3.0), np.full((2, 2), 1.0)])})
    np.testing.assert_array_equal(slots.rows(a)["H"], np.full((2, 2), 1.0))
    np.testing.assert_array_equal(slots.rows(b)["H"], np.eye(2))
    np.testing.assert_array_equal(slots.rows(c)["H"], np.full((2, 2), 3.0))
    gathered = slots.gather([a, c])["state.H"]
    np.testing.assert_array_equal(gathered[:, 0, 0], [1.0, 3.0])


def test_slots_count_down_and_up() -> None:
    slots = table(2)
    first, second = slots.acquire(), slots.acquire()
    assert first != second and slots.num_free == 0
    slots.release(first)
    assert slots.num_free == 1
