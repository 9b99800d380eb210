"""What two versions say to each other."""

from __future__ import annotations

from disco_client.wire.codec import PROTOCOL, mismatch


def test_equal_protocols_have_nothing_to_say():
    """Whatever the releases are."""
    assert mismatch("controller 0.1", PROTOCOL, "client 9.9", PROTOCOL) is None


def test_different_protocols_name_both_and_who_should_upgrade():
    """The older side is told, whichever side that is."""
    theirs = mismatch("controller 2.0", 3, "client 1.0", 1)
    mine = mismatch("controller 1.0", 1, "worker 2.0", 3)
    assert theirs is not None
    assert mine is not None
    for text in (theirs, mine):
        assert "protocol 3" in text
        assert "protocol 1" in text
    assert "upgrade the client" in theirs
    assert "upgrade the controller" in mine
