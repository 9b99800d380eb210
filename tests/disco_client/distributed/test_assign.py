"""The values of some tensors become those of others: all of a model's, from mesh to mesh."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import disco_server
from disco_client import (
    AssignFailed,
    CaptureError,
    ConfigError,
    ForeignReference,
    RemoteError,
    ThreadedSession,
)
from disco_client.distributed import DeviceMesh, Local, Pattern, register_rule

TRAIN = DeviceMesh((2,), [0, 1])
USE = DeviceMesh((2,), [3, 2])
SHAPES = {"embed": (64, 8), "up": (8, 33), "down": (33, 8), "norm": (8,), "scale": ()}
PLACEMENTS = {"embed": "S[0]", "up": "S[1]", "down": "S[0]", "norm": "R", "scale": "R"}


def model(seed):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype("float16" if name == "norm" else "float32")
        for name, shape in SHAPES.items()
    }


def placed(session, arrays, mesh, placements):
    return {name: session.distribute(a, mesh, placements[name]) for name, a in arrays.items()}


def copies(arrays):
    return dict.fromkeys(arrays, "R")


def same(tensors, arrays):
    for name, tensor in tensors.items():
        array = arrays[name]
        assert tensor.numpy().tobytes() == array.tobytes(), name
        for place, worker in enumerate(tensor.mesh.device_ids):
            part = tuple(slice(*bounds) for bounds in tensor.info.bounds(place))
            assert tensor.shard(worker).tobytes() == np.ascontiguousarray(array[part]).tobytes()


def test_a_model_gets_the_values_of_another_one(workers):
    """Again and again, from copies to parts; the tensors stay the same."""
    used = placed(workers, model(0), USE, PLACEMENTS)
    refs = {name: tensor.ref for name, tensor in used.items()}
    for seed in (1, 2):
        trained = model(seed)
        workers.assign(used, placed(workers, trained, TRAIN, copies(trained)), progress=False)
        same(used, trained)
    assert all(used[name].ref is ref for name, ref in refs.items())
    same(used, model(2))


def test_a_captured_program_computes_with_the_new_values(workers):
    """It has captured the tensors, not their values."""
    weight = workers.distribute(np.ones((4, 4), "float32"), USE, "S[1]")
    x = workers.distribute(np.eye(4, dtype="float32"), USE, "R")
    with workers.capture("forward") as program:
        program.output(program.input("x", like=x) @ weight)
    other = workers.distribute(np.full((4, 4), 3, "float32"), TRAIN, "S[0]")
    np.testing.assert_array_equal(program(x).numpy(), np.ones((4, 4)))
    workers.assign({"w": weight}, {"w": other})
    np.testing.assert_array_equal(program(x).numpy(), np.full((4, 4), 3))


def test_partial_values_are_combined_on_the_way(workers):
    """And what is to be partial is."""
    array = np.arange(24, dtype="float32").reshape(4, 6)
    source = workers.distribute(array, TRAIN, "P")
    for placement in ("S[1]", "R", "P"):
        target = workers.distribute(np.zeros((4, 6), "float32"), USE, placement)
        workers.assign({"x": target}, {"x": source})
        np.testing.assert_array_equal(target.numpy(), array)


def test_nothing_is_sent_twice(workers):
    """All of a model together: what the workers receive is the bound of each tensor's plan."""
    used = placed(workers, model(0), USE, PLACEMENTS)
    trained = placed(workers, model(1), TRAIN, copies(SHAPES))
    plans = [x.plan(used[name].mesh, used[name].placement) for name, x in trained.items()]
    count = workers.get_global_func("runtime.disco._received_bytes")
    before = sum(count().get_all())
    workers.assign(used, trained)
    assert sum(count().get_all()) - before == sum(plan.bound for plan in plans)


@disco_server.register_func("tests.where_it_lies")
def where_it_lies(array):
    """The address of an array."""
    return 0 if array is None else array.ctypes.data


def test_values_go_into_the_memory_of_the_target():
    """Unless something else has it: another tensor keeps its values."""
    with ThreadedSession(4) as session:
        place = session.get_global_func("tests.where_it_lies")
        target = session.distribute(np.zeros((64, 1024), "float32"), USE, "S[0]")
        source = session.distribute(np.ones((64, 1024), "float32"), TRAIN, "S[1]")
        at_first = place(target.ref).get_all()
        session.assign({"x": target}, {"x": source})
        assert place(target.ref).get_all() == at_first
        view = target.reshape(64, 32, 32)
        assert place(view.ref).get_all() == at_first
        session.assign({"x": target}, {"x": source + 1})
        assert place(target.ref).get_all()[2:] != at_first[2:]
        np.testing.assert_array_equal(view.numpy(), np.ones((64, 32, 32)))
        np.testing.assert_array_equal(target.numpy(), np.full((64, 1024), 2))
        del view
        session.assign({"x": target}, {"x": target})
        np.testing.assert_array_equal(target.numpy(), np.full((64, 1024), 2))
        turned = target.T
        session.assign({"x": turned}, {"x": source.T})
        np.testing.assert_array_equal(turned.numpy(), np.ones((1024, 64)))
        np.testing.assert_array_equal(target.numpy(), np.full((64, 1024), 2))


ALIKE = {
    "redistribute": lambda x: x.redistribute(x.placement),
    "redistribute to the mesh": lambda x: x.redistribute(x.mesh, str(x.placement)),
    "clip": lambda x: x.clip(),
    "numpy.clip": lambda x: np.clip(x, None, None),
    "round": lambda x: np.round(x, 2),
    "Python's round": round,
    "copy": copy.copy,
    "positive": lambda x: +x,
    "cast": lambda x: x.astype(x.dtype),
    "reshape": lambda x: x.reshape(x.shape),
    "flat": np.ravel,
    "squeeze": np.squeeze,
    "expand": lambda x: x[None],
    "transpose": lambda x: x.transpose(0, 1),
    "all of it": lambda x: x[...],
    "rows": lambda x: x[1:],
    "split": lambda x: np.split(x, 2)[1],
    "einsum": lambda x: np.einsum("ij->ji", x),
    "to copies": lambda x: x.redistribute("R"),
    "to sums": lambda x: x.redistribute("P"),
    "along no axis": lambda x: x.sum(axis=()),
    "stacked": lambda x: np.vstack([x]),
    "conjugate": np.conjugate,
    "program": lambda x: identity_program(x)(x),
    "function": lambda x: x.ref.session.apply("tests.assign.same", x),
    "buffer": lambda x: x.ref.session.apply("tests.assign.of_buffer", x),
    "dlpack": lambda x: x.ref.session.apply("tests.assign.of_dlpack", x),
}
"""What may have the memory of the tensor that it is given."""


@disco_server.register_func("tests.assign.same")
def same_part(part):
    """The operand itself."""
    return part


@disco_server.register_func("tests.assign.of_dlpack")
def of_dlpack(part):
    """The same memory, lent."""
    return np.from_dlpack(part)


@disco_server.register_func("tests.assign.of_buffer")
def of_buffer(part):
    """The same memory as an array that knows nothing of the first."""
    return np.frombuffer(memoryview(part).cast("B"), part.dtype).reshape(part.shape)


for _name in ("same", "of_dlpack", "of_buffer"):

    @register_rule(f"tests.assign.{_name}")
    def _rule(x, name=f"tests.assign.{_name}"):
        return Local(name, Pattern((("a", "b"),), ("a", "b")), x)


def identity_program(x):
    with x.ref.session.capture("identity") as program:
        program.output(program.input("x", like=x))
    return program


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-4]"])
def test_nothing_else_gets_what_a_tensor_is_assigned(placement):
    """Whatever made one of the other: either keeps its values, as copies of numpy's do."""
    array = np.arange(1, 9).reshape(4, 2)
    with ThreadedSession(2) as session:
        for name, make in ALIKE.items():
            for turned in (False, True):
                x = session.distribute(array, placement=placement)
                y = make(x)
                target, kept = (y, x) if turned else (x, y)
                before, new = kept.numpy(), np.full(target.shape, 77)
                session.assign({"x": target}, {"x": session.distribute(new)})
                np.testing.assert_array_equal(target.numpy(), new, err_msg=name)
                np.testing.assert_array_equal(kept.numpy(), before, err_msg=f"{name}, {turned}")


def test_two_that_were_one_are_two_targets():
    """Both are assigned at once, also each what the other has."""
    one, other = np.zeros((4, 2)), np.ones((4, 2))
    with ThreadedSession(2) as session:
        x, y = (session.distribute(each, placement="S[0]") for each in (one, other))
        session.assign({"x": x, "y": y}, {"x": copy.copy(y), "y": copy.copy(x)})
        np.testing.assert_array_equal(x.numpy(), other)
        np.testing.assert_array_equal(y.numpy(), one)
        again = x.redistribute("S[0]")
        session.assign({"x": x, "again": again}, {"x": y, "again": y + 2})
        np.testing.assert_array_equal(x.numpy(), one)
        np.testing.assert_array_equal(again.numpy(), one + 2)


def test_a_program_has_the_one_that_it_has_captured():
    """Not the other one, though both had one memory."""
    with ThreadedSession(2) as session:
        x = session.distribute(np.ones(4), placement="S[0]")
        y = x.redistribute("S[0]")
        with session.capture("both") as program:
            program.output(x + 0, y + 0, y, y)
        session.assign({"x": x}, {"x": session.distribute(np.full(4, 5.0))})
        first, second, third, fourth = program()
        assert (first.numpy()[0], second.numpy()[0], third.numpy()[0]) == (5, 1, 1)
        session.assign({"x": third}, {"x": x})
        assert (third.numpy()[0], fourth.numpy()[0], y.numpy()[0]) == (5, 1, 1)


def test_nothing_is_copied_where_nothing_is_shared():
    """When the other one is gone, or was what is assigned, values go into the memory again."""
    with ThreadedSession(2) as session:
        place = session.get_global_func("tests.where_it_lies")
        ones = session.distribute(np.ones((64, 1024), "float32"))
        x = session.distribute(np.zeros((64, 1024), "float32"), placement="S[0]")
        at_first = place(x.ref).get_all()
        # Kept under the same name, so that the first is gone.
        x = x.redistribute("S[0]")
        x = copy.copy(x)
        assert place(x.ref).get_all() == at_first
        session.assign({"x": x}, {"x": ones})
        assert place(x.ref).get_all() == at_first
        y = x.clip()
        assert place(y.ref).get_all() == at_first
        session.assign({"x": x}, {"x": ones + 1})
        moved = place(x.ref).get_all()
        assert (place(y.ref).get_all(), set(moved) & set(at_first)) == (at_first, set())
        # Neither is shared now.
        session.assign({"x": x, "y": y}, {"x": ones, "y": ones})
        assert (place(x.ref).get_all(), place(y.ref).get_all()) == (moved, at_first)


def many(session, value, mesh, placement):
    array = np.full(4, value, "float32")
    return {f"w{number}": session.distribute(array, mesh, placement) for number in range(600)}


def test_a_failure_in_the_middle(workers):
    """What is finished is new, what comes later is old, and what was under way is neither."""
    used, trained = many(workers, 0, USE, "S[0]"), many(workers, 1, TRAIN, "R")
    odd = trained["w300"]
    trained["w300"] = odd._held_by(workers.get_global_func("numpy.zeros")(3))
    with pytest.raises(AssignFailed, match="of the tensors that were assigned") as raised:
        workers.assign(used, trained)
    error = raised.value
    assert [*error.new, *error.poisoned, *error.old] == list(used)
    assert (len(error.new), len(error.poisoned), len(error.old)) == (256, 256, 88)
    assert f"\n  old: {', '.join(error.old)}" in str(error)
    for name in ("w0", "w255"):
        np.testing.assert_array_equal(used[name].numpy(), np.ones(4))
    for name in ("w512", "w599"):
        np.testing.assert_array_equal(used[name].numpy(), np.zeros(4))
    for name in ("w256", "w300", "w511"):
        for worker in USE.device_ids:
            with pytest.raises(RemoteError, match=r"session\.assign failed while it wrote"):
                used[name].shard(worker)
    # The next try makes all of them good.
    trained["w300"] = odd
    workers.assign(used, trained)
    for name in ("w0", "w256", "w300", "w511", "w599"):
        np.testing.assert_array_equal(used[name].numpy(), np.ones(4))


def test_a_source_that_could_not_be_computed_stops_all(workers):
    """Before anything is written, also if its failure was raised before."""
    used, trained = many(workers, 0, USE, "S[0]"), many(workers, 1, TRAIN, "R")
    broken = workers.get_global_func("runtime.disco._dt_bind_move")("no such move")
    with pytest.raises(RemoteError):
        workers.sync_all()
    trained["w300"] = trained["w300"]._held_by(broken)
    with pytest.raises(RemoteError, match="no such move") as raised:
        workers.assign(used, trained)
    assert not isinstance(raised.value, AssignFailed)
    np.testing.assert_array_equal(used["w0"].numpy(), np.zeros(4))


def test_what_cannot_be_assigned_is_refused(workers):
    """With all that does not fit, before anything is written."""
    x = workers.distribute(np.zeros((2, 2), "float32"), USE, "S[0]")
    y = workers.distribute(np.zeros(4, "float64"), USE, "S[0]")
    ones = workers.distribute(np.ones((2, 2), "float32"), TRAIN, "R")
    with pytest.raises(ConfigError) as raised:
        workers.assign({"x": x, "y": y, "z": x}, {"x": ones, "y": ones, "w": y})
    assert str(raised.value) == (
        "nothing was assigned: 'w' has no target; 'y' is (4,) float64, and its source (2, 2)"
        " float32; 'z' and 'x' are one tensor; 'z' has no source; the source of 'w' is the target"
        " 'y'"
    )
    for wrong in ([x], {"x": np.ones(3)}):
        with pytest.raises(ConfigError, match=r"expected .*tensor"):
            workers.assign(wrong, {"x": ones})
    with pytest.raises(CaptureError), workers.capture():
        workers.assign({"x": x}, {"x": ones})
    with ThreadedSession(2) as other:
        foreign = other.distribute(np.ones((2, 2), "float32"))
        with pytest.raises(ForeignReference, match="'x' is a tensor of another session"):
            workers.assign({"x": x}, {"x": foreign})
    np.testing.assert_array_equal(x.numpy(), np.zeros((2, 2)))
    workers.assign({}, {})
