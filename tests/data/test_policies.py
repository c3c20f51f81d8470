"""Test the tables of policies and what is sampled by them."""

from collections import Counter
from typing import get_args

import pytest
import torch

from fewmore.data.operations import KINDS
from fewmore.data.policies import RANDAUGMENT_KINDS, apply_policy, sample_operations, sub_policies
from fewmore.data.transform import Policy, Transform

CPU = torch.device("cpu")
POLICIES = [policy for policy in get_args(Policy) if policy != "none"]


def transform(policy: str, **changed: object) -> Transform:
    return Transform(16, (0.5,) * 3, (0.25,) * 3, policy=policy, **changed)  # type: ignore[arg-type]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Tables


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_autoaugment_has_25_sub_policies_of_two_operations(name: str) -> None:
    policy = sub_policies(transform(f"autoaugment-{name}"))
    assert len(policy) == 25
    for sub_policy in policy:
        assert len(sub_policy) == 2
        for operation in sub_policy:
            assert operation.kind in KINDS
            assert 0 <= operation.probability <= 1


def test_the_published_tables_by_their_sums() -> None:
    """Pin how often each operation occurs, and the sum of its probabilities in tenths."""

    def sums(name: str) -> dict[str, tuple[int, int]]:
        found = [op for row in sub_policies(transform(f"autoaugment-{name}")) for op in row]
        kinds = Counter(op.kind for op in found)
        return {
            kind: (count, round(10 * sum(op.probability for op in found if op.kind == kind)))
            for kind, count in sorted(kinds.items())
        }

    assert sums("cifar10") == {
        "auto-contrast": (7, 50),
        "brightness": (4, 23),
        "color": (5, 29),
        "contrast": (2, 8),
        "equalize": (9, 47),
        "invert": (3, 2),
        "posterize": (1, 3),
        "rotate": (1, 7),
        "sharpness": (5, 28),
        "shear-y": (2, 7),
        "solarize": (4, 19),
        "translate-x": (2, 8),
        "translate-y": (5, 34),
    }
    assert sums("imagenet") == {
        "auto-contrast": (2, 12),
        "color": (6, 38),
        "contrast": (2, 20),
        "equalize": (17, 112),
        "invert": (3, 18),
        "posterize": (5, 28),
        "rotate": (6, 36),
        "sharpness": (1, 4),
        "shear-x": (1, 6),
        "solarize": (7, 36),
    }


def test_magnitudes_mean_the_published_strengths() -> None:
    """Compare some rows with numbers worked out by hand from the paper's table of ranges."""
    cifar10 = sub_policies(transform("autoaugment-cifar10"))
    assert cifar10[1] == (
        ("rotate", 0.7, 0.0, pytest.approx(30 * 2 / 9)),
        ("translate-x", 0.3, 0.0, pytest.approx(150 / 331)),
    )
    assert cifar10[3][0] == ("shear-y", 0.5, 0.0, pytest.approx(0.3 * 8 / 9))
    assert cifar10[6][1] == ("brightness", 0.6, 1.0, pytest.approx(0.7))
    assert cifar10[5][1] == ("posterize", 0.3, 5.0, 0.0)
    assert cifar10[14][0] == ("solarize", 0.5, pytest.approx(255 * 7 / 9), 0.0)
    assert cifar10[4][1] == ("equalize", 0.9, 0.0, 0.0)
    imagenet = sub_policies(transform("autoaugment-imagenet"))
    assert imagenet[0][0] == ("posterize", 0.4, 4.0, 0.0)
    assert imagenet[-2] == (
        ("color", 0.6, 1.0, pytest.approx(0.4)),
        ("contrast", 1.0, 1.0, pytest.approx(0.8)),
    )


@pytest.mark.parametrize(
    ("magnitude", "rotate", "bits", "threshold"),
    [(0, 0, 8, 255), (15, 15, 6, 127.5), (30, 30, 4, 0)],
)
def test_randaugment_has_14_operations_of_one_magnitude(
    magnitude: int, rotate: float, bits: float, threshold: float
) -> None:
    policy = sub_policies(transform("randaugment", randaugment_magnitude=magnitude))
    assert [sub_policy[0].kind for sub_policy in policy] == list(RANDAUGMENT_KINDS)
    assert len(policy) == 14
    by_kind = {operation.kind: operation for (operation,) in policy}
    assert by_kind["rotate"] == ("rotate", 1.0, 0.0, rotate)
    assert by_kind["posterize"].center == bits
    assert by_kind["solarize"].center == threshold


# Sampling


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_operations_are_sampled_with_their_probabilities(name: str) -> None:
    """Of 25 000 images, each sub-policy gets about 1000: pairs of kinds are as often as theirs."""
    chosen = transform(f"autoaugment-{name}")
    (first, _), (second, _) = sample_operations(25_000, chosen, CPU, seeded())
    counts = Counter(zip(first.tolist(), second.tolist(), strict=True))
    expected: Counter[tuple[int, int]] = Counter()
    for one, other in sub_policies(chosen):
        for kind, share in ((KINDS.index(one.kind), one.probability), (0, 1 - one.probability)):
            expected[kind, KINDS.index(other.kind)] += 1000 * share * other.probability  # type: ignore[assignment]
            expected[kind, 0] += 1000 * share * (1 - other.probability)  # type: ignore[assignment]
    assert set(counts) == {pair for pair, count in expected.items() if count}
    for pair, count in counts.items():
        deviation = max(expected[pair], 1) ** 0.5
        assert count == pytest.approx(expected[pair], abs=5 * deviation), pair


@pytest.mark.parametrize("ops", [1, 2, 3])
def test_randaugment_samples_each_operation_equally_often(ops: int) -> None:
    slots = sample_operations(14_000, transform("randaugment", randaugment_ops=ops), CPU, seeded())
    assert len(slots) == ops
    for kinds, _ in slots:
        counts = torch.bincount(kinds, minlength=len(KINDS))
        assert int(counts[KINDS.index("invert")]) == 0
        assert all(840 < int(counts[KINDS.index(kind)]) < 1160 for kind in RANDAUGMENT_KINDS)
    if ops > 1:
        assert not torch.equal(slots[0][0], slots[1][0])


def test_half_of_the_strengths_go_each_way() -> None:
    kinds, strengths = sample_operations(
        14_000, transform("randaugment", randaugment_magnitude=30), CPU, seeded()
    )[0]
    angles = strengths[kinds == KINDS.index("rotate")]
    assert set(angles.tolist()) == {-30.0, 30.0}
    assert 0.4 < float((angles > 0).float().mean()) < 0.6
    factors = strengths[kinds == KINDS.index("contrast")]
    assert sorted(set(factors.tolist())) == pytest.approx([0.1, 1.9])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_policy_is_applied_to_its_share_of_images(policy: str, share: float) -> None:
    slots = sample_operations(5000, transform(policy, policy_probability=share), CPU, seeded())
    always = sample_operations(5000, transform(policy), CPU, seeded())
    changed = torch.stack([kinds for kinds, _ in slots]).any(0)
    usually = torch.stack([kinds for kinds, _ in always]).any(0)
    assert not bool((changed & ~usually).any())
    rate = float(changed.sum()) / float(usually.sum())
    assert rate == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_generator_decides_all_random_numbers(policy: str) -> None:
    pixels = torch.randint(0, 256, (1, 3, 16, 16), generator=seeded()).to(torch.uint8)
    batch = pixels.expand(64, -1, -1, -1)
    torch.manual_seed(0)
    one = apply_policy(batch, transform(policy), seeded(1))
    torch.manual_seed(1)
    assert torch.equal(one, apply_policy(batch, transform(policy), seeded(1)))
    assert not torch.equal(one, apply_policy(batch, transform(policy), seeded(2)))
    assert len({image.numpy().tobytes() for image in one}) > 20  # each image has its own
