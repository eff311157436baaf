"""Made-up prose of any length from a seed: text to measure on that no model has memorised."""

from __future__ import annotations

import random

_PEOPLE = ("Amara", "Bruno", "Chidi", "Dagny", "Elif", "Farid", "Greta", "Hana", "Ivo", "Jun")
_GOODS = ("timber", "copper wire", "lamp oil", "sailcloth", "barley", "glass beads", "rope", "salt")
_PLACES = ("the harbour", "the mill", "the north gate", "the station", "the old bridge", "the quay")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FORMS = (
    "On {day} {person} sold {count} crates of {goods} at {place}.",
    "{person} waited at {place} until {goods} arrived, and counted {count} bundles.",
    "The ledger says that {count} loads of {goods} left {place} on {day}.",
    "Nobody at {place} remembered why {person} had ordered {count} barrels of {goods}.",
    "It rained on {day}, so {person} stored the {goods} near {place} and paid {count} coins.",
)


def sentences(count: int, seed: str) -> list[str]:
    """``count`` sentences, the same for the same seed on every machine and Python."""
    source = random.Random(seed)
    return [
        source.choice(_FORMS).format(
            day=source.choice(_DAYS),
            person=source.choice(_PEOPLE),
            goods=source.choice(_GOODS),
            place=source.choice(_PLACES),
            count=source.randrange(2, 990),
        )
        for _ in range(count)
    ]
