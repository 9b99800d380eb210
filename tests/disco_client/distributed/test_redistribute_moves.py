"""Plans that are carried out."""

from __future__ import annotations

import numpy as np

from disco_client.distributed import DeviceMesh
from disco_client.distributed.redistribute import make_plan


def test_a_plan_is_prepared_once_and_run_often(workers):
    """On other tensors that lie alike."""
    mesh = DeviceMesh((2, 2), range(4))
    executor = workers._engine.executor
    arrays = [np.full((3, 5), value) for value in (1.0, 2.0)]
    tensors = [workers.distribute(array, mesh, "S[0], P") for array in arrays]
    plan = make_plan(tensors[0].info, "R, S[1]")
    moves = executor.prepare(plan)
    assert [move.step for move in moves] == list(plan.steps)
    for tensor, array in zip(tensors, arrays, strict=True):
        parts = executor.run(moves, tensor.ref)
        for place, worker in enumerate(mesh.device_ids):
            part = tuple(slice(*bounds) for bounds in plan.after.bounds(place))
            np.testing.assert_array_equal(parts.numpy(worker), array[part])


def test_nothing_is_done_for_nothing(workers):
    """The parts stay where they are, in a second register; a fetch needs none, nor a command."""
    x = workers.distribute(np.ones(4), workers.mesh(), "S[0]")
    count = workers.get_global_func("runtime.disco._received_bytes")
    before = count().get_all()
    y = x.redistribute("S[0]")
    assert y.explain() == "redistribute -> S[0]: 0 bytes to a worker\n  nothing moved"
    assert y.ref.reg_id != x.ref.reg_id
    assert count().get_all() == before
    workers.sync_all()  # with it, registers are freed that nothing refers to any more
    issued = workers.statistics()["issued"]
    x.numpy()
    y.redistribute("S[0]")
    # Of a fetch one for each worker that has a part, and the other tensor.
    assert workers.statistics()["issued"] - issued == 5


def test_each_step_is_told_to_who_watches(workers):
    """In order, as it is issued."""
    executor = workers._engine.executor
    seen = []
    executor.watchers.append(seen.append)
    try:
        x = workers.distribute(np.ones((4, 4)), DeviceMesh((2, 2), range(4)), "P, S[1]")
        seen.clear()
        moved = x.redistribute("S[0], R")
    finally:
        executor.watchers.remove(seen.append)
    ((_, plan),) = moved.origin.moves
    assert seen == list(plan.steps)
    assert [step.move for step in seen] == ["reduce-scatter", "allgather"]


def test_tables_have_an_entry_for_each_worker(workers):
    """None outside the mesh."""
    table = workers._engine.executor.table(DeviceMesh((2,), [3, 1]), ["a", "b"])
    assert table == [None, "b", None, "a"]
