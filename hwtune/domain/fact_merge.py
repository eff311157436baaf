"""Several sightings of one fact -> one value, with the others kept beside it."""

from __future__ import annotations

from hwtune.domain.evidence import Fact, Sighting, Value
from hwtune.domain.marker_set import FactRule

_MAX_PLACES = 5
_MAX_OTHERS = 8


class FactCollector:
    """Sightings of one fact, merged as they come."""

    def __init__(self, rule: FactRule) -> None:
        self._rule = rule
        self._seen: dict[Value, list[Sighting]] = {}
        self._count: dict[Value, int] = {}
        self._last: Sighting | None = None

    def add(self, sighting: Sighting) -> None:
        """Takes one sighting."""
        places = self._seen.setdefault(sighting.value, [])
        self._count[sighting.value] = self._count.get(sighting.value, 0) + 1
        self._last = sighting
        if len(places) < _MAX_PLACES:
            places.append(sighting)
        best = max(places, key=lambda item: item.rank)
        if sighting.rank > best.rank:
            places[-1] = sighting

    def fact(self) -> Fact:
        """What the sightings so far amount to."""
        if self._rule.merge == "union":
            return self._union()
        top = max(item.rank for places in self._seen.values() for item in places)
        ranked = [v for v, places in self._seen.items() if any(p.rank == top for p in places)]
        value = self._pick(ranked)
        mine = sorted(self._seen[value], key=lambda item: -item.rank)
        others = [places[0] for other, places in self._seen.items() if other != value]
        return Fact(
            name=self._rule.name,
            value=value,
            evidence=tuple(item.place for item in mine),
            sightings=self._count[value],
            others=tuple(others[:_MAX_OTHERS]),
        )

    def _pick(self, ranked: list[Value]) -> Value:
        if self._rule.merge in ("min", "max"):
            choose = min if self._rule.merge == "min" else max
            return choose(ranked, key=lambda v: v if isinstance(v, (int, float)) else 0)
        if self._rule.merge == "last" and self._last is not None and self._last.value in ranked:
            return self._last.value
        return ranked[0]

    def _union(self) -> Fact:
        items: dict[str | int, None] = {}
        for value in self._seen:
            items.update(dict.fromkeys(value if isinstance(value, tuple) else (str(value),)))
        places = [place for sightings in self._seen.values() for place in sightings]
        return Fact(
            name=self._rule.name,
            value=tuple(items),
            evidence=tuple(item.place for item in places[:_MAX_PLACES]),
            sightings=sum(self._count.values()),
        )
