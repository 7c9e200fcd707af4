"""The protocol under faults: thousands of simulated lives of a flow, and bugs that these must find."""

import collections

import pytest
from simulation.cases import WINDOWS, Failure, calm, simulate
from simulation.planted import PLANTED
from simulation.world import FAULTS

CHUNKS, CHUNK = 20, 100
MOST_SEEDS = 200


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_happens_results_come_once_and_in_order(chunk):
    happened = collections.Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        try:
            life = simulate(seed)
        except Exception as error:
            error.add_note(f"Replay it: python -m tests.simulation --seed {seed}")
            raise
        happened.update(fault for _, fault, _ in life.world.happened)
    assert set(FAULTS) <= set(happened), "each kind of fault has happened"


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, monkeypatch):
    for kind in range(5):
        for window in WINDOWS:
            calm(kind, window)  # what is right is found out before
    PLANTED[bug](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            simulate(seed)
        except (Failure, AssertionError, LookupError, OSError):
            return
    pytest.fail(f"not found in {MOST_SEEDS} seeds: {PLANTED[bug].__doc__}")


def test_a_seed_is_the_same_life_again():
    for seed in range(12):
        lives = [simulate(seed) for _ in range(2)]
        assert lives[0].world.happened == lives[1].world.happened
        assert lives[0].starts == lives[1].starts
