"""Register ids against a model of the original's: a stack of free ones, then the counter."""

from __future__ import annotations

import random
import threading

from hypothesis import given
from hypothesis import strategies as st

from disco_client.registers import Owners, RegisterIds


def free(ids, register):
    ids.dead.append(register)
    ids.told(1)


def test_freed_ids_come_back_last_in_first_out():
    """As the original's documented sequence: 3 comes back at once, then 4, then 2, then 5."""
    ids = RegisterIds()
    assert [ids.allocate() for _ in range(3)] == [1, 2, 3]
    free(ids, 3)
    assert ids.allocate() == 3
    assert ids.allocate() == 4
    free(ids, 2)
    free(ids, 4)
    assert [ids.allocate() for _ in range(3)] == [4, 2, 5]
    assert ids.high_water == 5


@given(st.lists(st.none() | st.integers(0, 1000)))
def test_no_two_live_references_share_an_id(steps):
    """Whatever is allocated (None) and freed (a choice), ids stay unique and few."""
    ids, live, freed, most = RegisterIds(), [], [], 0
    for step in steps:
        if step is None:
            register = ids.allocate()
            assert register not in live
            assert register == (freed.pop() if freed else most + 1)
            live.append(register)
            most = max(most, register)
        elif live:
            register = live.pop(step % len(live))
            free(ids, register)
            freed.append(register)
        assert ids.high_water == most
        assert ids.live() == set(live)
        assert 0 not in live


@given(st.lists(st.tuples(st.sampled_from(["new", "add", "keep", "remove"]), st.integers(0, 1000))))
def test_a_register_is_freed_when_its_last_owner_has_ended(steps):
    """As in a model that counts, where programs own what they keep; none is freed twice."""
    ids, owners = RegisterIds(), Owners()
    references: dict[int, int] = {}
    kept: dict[int, list[int]] = {}

    def owned(register):
        return references[register] + sum(register in others for others in kept.values())

    for step, choice in steps:
        known = sorted(references)
        if step in ("new", "keep") or not known:
            register = ids.allocate()
            assert register not in references
            references[register] = 1
            if step == "keep" and known:
                kept[register] = random.Random(choice).sample(known, min(3, len(known)))
                owners.keep(register, kept[register])
        elif step == "add":
            register = known[choice % len(known)]
            if references[register]:  # else there is nothing to be copied
                owners.add(register)
                references[register] += 1
        elif references[register := known[choice % len(known)]]:
            references[register] -= 1
            ended = owners.remove(register)
            for register in ended:
                free(ids, register)
            expected = []
            while unowned := [register for register in references if not owned(register)]:
                for register in unowned:
                    del references[register]
                    kept.pop(register, None)
                expected += unowned
            assert sorted(ended) == sorted(expected)
        assert ids.live() == set(references)


def test_owners_come_and_go_in_any_thread():
    """One of them is the last, and it alone frees the register."""
    owners, ended = Owners(), []

    def own(seed):
        choose, mine = random.Random(seed), 1
        while mine:
            if mine < 20 and choose.random() < 0.5:
                owners.add(7)
                mine += 1
            else:
                ended.extend(owners.remove(7))
                mine -= 1

    threads = [threading.Thread(target=own, args=(seed,)) for seed in range(4)]
    for _ in threads[1:]:
        owners.add(7)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [7]
    assert not owners.several
