"""What a lookup says about itself: which queries were lost, and in a few words what it had to overcome."""

from __future__ import annotations

import pytest

from loadgen.core.dnswire import AAAA, NXDOMAIN, A
from loadgen.core.lookup import Error, Mode, Result, Round
from tests.virtualdns import Behaviour, Network, Race, always, fine, no_a_ever, no_aaaa_ever, reply, silent

DETAILS = {
    "fine": (fine, "", ("", 1, 0)),
    "AAAA lost": (Race(), "", ("AAAA lost, single-request fallback", 2, 1)),
    "AAAA never": (no_aaaa_ever, "", ("AAAA lost, answered without", 3, 3)),
    "both lost once": (lambda s: reply(s) if s.number > 2 else None, "", ("A and AAAA lost, asked again", 2, 2)),
    "A lost once": (lambda s: reply(s) if s.number != 1 else None, "", ("A lost, single-request fallback", 2, 1)),
    "AAAA lost twice": (
        lambda s: None if s.number in (2, 4) else reply(s),
        "",
        ("AAAA lost, single-request-reopen fallback", 3, 2),
    ),
    "nothing": (silent, "", ("EAI_AGAIN", 2, 4)),
    "A never": (no_a_ever, "", ("EAI_AGAIN", 3, 3)),
    "NXDOMAIN": (always(NXDOMAIN), "", ("NXDOMAIN", 1, 0)),
    "no data": (lambda s: reply(s, answers=0), "", ("EAI_NODATA", 1, 0)),
    "truncated garbage": (lambda s: reply(s)[:-3], "", ("no address", 1, 0)),
}


@pytest.mark.parametrize(("behaviour", "options", "account"), DETAILS.values(), ids=DETAILS)
def test_the_account_a_lookup_gives(behaviour: Behaviour, options: str, account: tuple[str, int, int]) -> None:
    network = Network(behaviour, options)
    result = network.lookup("a.test.")[1]
    assert (result.detail, len(result.rounds), result.lost) == account
    assert type(result.detail) is str  # not an enum, for it travels
    assert result.queries == len(network.seen)


ROUNDS = {
    "answered": ((A, AAAA), ()),
    "rejected": ((A, AAAA), ()),
    "truncated": ((), ()),  # the other reply was not waited for
    "timeout": ((AAAA,), (A,)),
    "failed": ((), (A, AAAA)),
    "abandoned": ((A,), (AAAA,)),
}


@pytest.mark.parametrize(("end", "answered", "lost"), [(end, *row) for end, row in ROUNDS.items()], ids=ROUNDS)
def test_only_what_was_waited_for_is_lost(end: str, answered: tuple[int, ...], lost: tuple[int, ...]) -> None:
    this = Round("a.test.", 0, False, Mode.PARALLEL, (A, AAAA), answered, end)
    assert this.lost == lost
    result = Result(Error.AGAIN, (), (), (this, this), Mode.PARALLEL)
    assert (result.queries, result.lost, result.detail) == (4, 2 * len(lost), "EAI_AGAIN")
