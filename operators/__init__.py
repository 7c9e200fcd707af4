"""What a task does with batches: expressions, predicates, windows, order, the join. No file, socket or clock.

Reading order: `expressions` (what users write) → `binding` (names and types) → `evaluate` (values, exactly) →
`linear`, `ranges`, `contradictions`, `predicate` (keys and ranges) → `windows`, `times`, `sequencer` (order) →
`join` (all of it together) → `window_join` (the same without an engine). `steps` are the ones without state;
`contracts` says what a source and a sink must be.
"""
