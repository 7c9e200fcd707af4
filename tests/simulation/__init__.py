"""The protocol under faults, without processes: the product's own code in a world that one seed decides.

`world` is time, disk, network and workers; `cases` is what runs there and what is checked; `planted` has bugs that must
be found. `python -m tests.simulation --seed 1234` replays a seed and tells what happened in it.
"""
