"""The design: tiers, order, prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwtune.domain.errors import UsageError
from hwtune.domain.prompts import prompt_lengths, token_prompt
from hwtune.domain.workload import (
    Design,
    Tier,
    check_design,
    parse_tier,
    schedule,
)

TIERS = (Tier(name="1-2K", least_tokens=1024, most_tokens=2048),)
DESIGN = Design(
    model="m",
    profile="cpu",
    flags=(),
    mode="concurrent servers",
    vocab_size=1000,
    tiers=TIERS,
    pairs=6,
    prompts_per_tier=18,
    output_tokens=16,
    concurrency=1,
)


@pytest.mark.parametrize(
    ("text", "name", "least", "most"),
    [
        ("4096-8192", "4-8K", 4096, 8192),
        ("4-8K", "4-8K", 4096, 8192),
        ("4k-8k", "4-8K", 4096, 8192),
        ("256-512", "256-512", 256, 512),
    ],
)
def test_tiers_are_read_as_tokens(text: str, name: str, least: int, most: int) -> None:
    assert parse_tier(text) == Tier(name=name, least_tokens=least, most_tokens=most)


@pytest.mark.parametrize("text", ["", "4096", "a-b", "8-4K", "512-1K", "0-10", "1-2-3", "-5-10"])
def test_a_bad_tier_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tier"):
        parse_tier(text)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"prompts_per_tier": 5}, "--prompts-per-tier"),
        ({"concurrency": 4}, "--prompts-per-tier"),
        ({"output_tokens": 1}, "--output-tokens"),
        ({"output_tokens": 1600}, "--output-tokens"),
        ({"tiers": TIERS * 2}, "--tier"),
        ({"margin": 0.0}, "--margin"),
        ({"pairs": 0}, "--blocks"),
    ],
)
def test_a_design_that_cannot_be_measured_names_the_option(
    change: dict[str, object], option: str
) -> None:
    check_design(DESIGN)
    with pytest.raises(UsageError, match=option):
        check_design(replace(DESIGN, **change))  # type: ignore[arg-type]


def test_every_two_pairs_are_abba_or_baab_and_both_orders_occur() -> None:
    arms = [block.arm[0] for block in schedule(replace(DESIGN, pairs=40, prompts_per_tier=40))]
    rounds = {"".join(arms[start : start + 4]) for start in range(0, len(arms), 4)}
    assert rounds == {"bccb", "cbbc"}


def test_the_order_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    design = replace(DESIGN, pairs=20, prompts_per_tier=20)
    assert schedule(design) == schedule(design)
    assert schedule(design) != schedule(replace(design, seed=2))


def test_tiers_take_turns_so_that_an_interrupted_run_has_some_of_each() -> None:
    tiers = tuple(Tier(name=str(n), least_tokens=100 * n, most_tokens=200 * n) for n in (1, 2, 3))
    blocks = schedule(replace(DESIGN, tiers=tiers))
    assert {block.tier.name for block in blocks[:12]} == {"1", "2", "3"}


def test_prompts_have_exactly_the_wanted_length_and_avoid_both_ends_of_the_vocabulary() -> None:
    ids = token_prompt("key", 5000, 1000)
    assert len(ids) == 5000
    assert min(ids) >= 50 and max(ids) < 750


def test_fresh_prompts_for_every_pair_and_attempt() -> None:
    prompts = {
        tuple(token_prompt(f"1/t/{pair}/{n}/0", 64, 1000)) for pair in (0, 1) for n in (0, 1)
    }
    assert len(prompts) == 4
    assert len({prompt[:4] for prompt in prompts}) == 4


def test_lengths_cover_the_tier_in_every_block() -> None:
    for pair in range(DESIGN.pairs):
        lengths = sorted(prompt_lengths(DESIGN, TIERS[0], pair))
        assert len(lengths) == 3
        width = (2048 - 16 - 1024) / 3
        assert [int((length - 1024) / width) for length in lengths] == [0, 1, 2]
