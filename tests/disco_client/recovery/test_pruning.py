"""Which commands bring back functions and modules where a checkpoint has the rest."""

from __future__ import annotations

import inspect
import re

import pytest

from disco_client.command_log import CommandLog
from disco_client.errors import EncodingError
from disco_client.recovery import journal
from disco_client.recovery.journal import Journal, PruneRequest, plan_pruning
from disco_client.wire.codec import Action, EncodedBatch


class Client:
    """Issues commands as a session does, and keeps them."""

    def __init__(self):
        self.log = CommandLog(2)
        self.journal = Journal(1 << 20)

    def look_up(self, name):
        def fill(command):
            command.args.add().str = name
            return 0

        return self.log.issue(Action.GET_GLOBAL_FUNC, fill, reg=int)[1]

    def call(self, func, *registers, text=None):
        if text is None:
            return self.log.issue_call(func, [2 * register + 1 for register in registers], int)

        def fill(command):
            command.args.add().str = text
            for register in registers:
                command.args.add().list.items.add().reg = register
            return 0

        return self.log.issue(Action.CALL_PACKED, fill, func=func, reg=int)[1]

    def upload(self, ticket):
        def fill(command):
            command.args.add().array.ticket = ticket
            command.args.add().bool = True
            return 0

        self.journal.add_upload(ticket, 0, memoryview(b"data"), 0)
        return self.log.issue(Action.COPY_TO_WORKER0, fill, reg=int, workers=(0,))[1]

    def sync(self):
        self.log.issue(Action.SYNC_WORKER, reg=0)

    def cut(self, made=(), published=(), failed=(), last=None):
        while (batch := self.log.take_batch()) is not None:
            self.journal.append(batch.encode())
            self.log.left(batch.last_seq)
        return plan_pruning(
            self.journal, PruneRequest(made, published, failed, last or self.log.last_seq)
        )


@pytest.fixture
def client():
    return Client()


def seqs(base):
    return [seq for seq, _ in base.commands]


def test_functions_are_looked_up_again_and_results_are_not(client):
    """What a checkpoint holds needs no command."""
    add = client.look_up("tests.add")
    for _ in range(5):
        client.call(add)
    base = client.cut({add})
    assert (seqs(base), base.written) == ([1], {add})


def test_what_something_was_made_of_is_made_again(client):
    """A function of a module: the module, what loads it, and what finds functions."""
    load, find = client.look_up("load"), client.look_up("find")
    module = client.call(load, text="file")
    client.call(load, text="another")
    function = client.call(find, module)
    assert seqs(client.cut({function})) == [1, 2, 3, 5]


def test_registers_are_told_from_those_that_had_their_number_before(client):
    """The last command that wrote one counts, and what that read counts from before."""
    make, other = client.look_up("make"), client.look_up("other")
    first = client.call(make, text="first")
    client.log.release(first)
    second = client.call(other, text="second")
    assert second == first
    assert seqs(client.cut({second, make})) == [1, 2, 4]


def test_what_may_have_been_changed_on_the_way_is_done_again(client):
    """An array that was filled before a function was made of it."""
    fill, make = client.look_up("fill"), client.look_up("make")
    array = client.upload(3)
    client.call(fill, array)
    function = client.call(make, array)
    client.call(fill, array)  # too late to matter to it
    base = client.cut({function, fill, make})
    assert (seqs(base), base.tickets) == ([1, 2, 3, 4, 5], {3})


def test_arguments_inside_lists_count(client):
    """A reference is one wherever it stands."""
    make = client.look_up("make")
    part = client.call(make, text="part")
    whole = client.call(make, part, text="whole")
    assert seqs(client.cut({whole})) == [1, 2, 3]


def test_what_changes_a_worker_for_good_is_done_again(client):
    """Imports, the collective library; not those that failed; and the wait behind them."""
    imports = client.look_up("runtime.disco._import_python_module")
    client.call(imports, text="a")
    client.sync()
    client.sync()
    client.call(imports, text="broken")
    client.sync()
    assert seqs(client.cut(failed={5})) == [1, 2, 3, 4]


def test_the_last_publication_of_what_is_made_counts(client):
    """What is published and saved needs none."""
    publish, function = client.look_up("runtime.disco._publish"), client.look_up("f")
    client.call(publish, function, text="f")
    client.call(publish, function, text="f")
    client.call(publish, function, text="saved")
    assert seqs(client.cut({publish, function}, published={"f"})) == [1, 2, 4]


def test_a_program_is_defined_again_with_its_functions(client):
    """Arrays that it was given are read when it runs, from where the checkpoint puts them."""
    func, echo = client.look_up("f"), client.look_up("echo")
    array = client.call(echo)

    def fill(command):
        command.program.registers.extend([func, array])
        return 0

    _, program = client.log.issue(Action.DEFINE_PROGRAM, fill, reg=int)
    assert seqs(client.cut({func, program})) == [1, 4]


def test_a_function_that_a_program_made_is_refused(client):
    """What that run had read is not known."""
    _, program = client.log.issue(Action.DEFINE_PROGRAM, reg=int)
    (result,) = client.log.allocate(1)

    def fill(command):
        command.results.append(result)
        return 0

    client.log.issue(Action.RUN_PROGRAM, fill, func=program, reg=0)
    with pytest.raises(EncodingError, match="captured program"):
        client.cut({result})


def test_what_only_the_checkpoint_before_has_is_refused(client):
    """Nothing is made of values that are not there."""
    make = client.look_up("make")
    function = client.call(make, 40)
    with pytest.raises(EncodingError, match="the checkpoint before"):
        client.cut({function})


def test_arrays_that_were_let_go_are_missed(client):
    """Where the limit was passed before."""
    make = client.look_up("make")
    function = client.call(make, client.upload(3))
    client.journal.uploads.clear()
    with pytest.raises(EncodingError, match="recover_limit_bytes"):
        client.cut({function})


def test_segments_skip_what_is_left_out(client):
    """Commands keep their numbers; batches say how many are missing before them."""
    add = client.look_up("tests.add")
    client.call(add)
    client.call(add)
    mul = client.look_up("tests.mul")
    base = client.cut({add, mul})
    made = base.segments([(9, base.commands[0][1]), (10, base.commands[0][1])])
    told = [(each.first, each.last, each.skipped) for each in made]
    assert told == [(1, 1, 0), (2, 4, 2), (5, 10, 4)]
    assert [EncodedBatch.FromString(bytes(each.payload)).skipped for each in made] == [0, 2, 4]
    assert [seq for each in made for seq, _ in each.entries()] == [1, 4, 9, 10]


LEAVES_NOTHING = re.compile(
    r"(local\.|mpi\.|nccl\.|rccl\.)?((send_to|recv_from|test)_\w+|sync_worker)"
    r"|barrier|cuda_ipc\.\w+"
    r"|_(save|snapshot|store)_\w+|_(load|weights)_check|_(interrupt|poison)_registers|_dt_assign"
    r"|_(un)?publish"
)
"""Functions that change arrays, registers and files, which a checkpoint has, or nothing."""


def test_what_changes_a_worker_is_done_again_after_a_checkpoint():
    """A function that returns nothing does something: imports a module, offers a class."""
    import disco_server.rank.builtins  # noqa: F401  (registers them)
    from disco_server.rank.functions import registry

    prefix = "runtime.disco."
    silent = {
        name.removeprefix(prefix).removeprefix(".")
        for name, func in registry().items()
        if name.startswith(prefix)
        and inspect.isfunction(func)
        and inspect.signature(func).return_annotation in (None, "None")
    }
    done_again = {name.removeprefix(prefix) for name in journal._EFFECTS}
    assert {name for name in silent if not LEAVES_NOTHING.fullmatch(name)} <= done_again
    assert {"_load_source", "_offer_source"} <= silent
