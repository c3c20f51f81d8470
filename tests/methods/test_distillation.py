"""Test the distillation loss, and that the teacher stays frozen."""

import pytest
import torch
import torch.nn.functional as F

from fewmore.errors import ConfigError
from fewmore.methods.distillation import DistillationConfig, Teacher, distillation_loss
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.learn_session import outputs

RANDOM = torch.Generator().manual_seed(0)
STUDENT, TEACHER = torch.randn(2, 6, 5, generator=RANDOM)


def test_it_is_zero_where_nothing_has_changed_and_positive_elsewhere() -> None:
    assert float(distillation_loss(TEACHER, TEACHER, 2.0)) == pytest.approx(0, abs=1e-6)
    assert float(distillation_loss(STUDENT, TEACHER, 2.0)) > 0


def test_a_shift_of_all_scores_does_not_matter() -> None:
    shifted = STUDENT + torch.randn(6, 1, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        distillation_loss(shifted, TEACHER, 2.0), distillation_loss(STUDENT, TEACHER, 2.0)
    )


def test_its_gradient_is_that_of_cross_entropy_with_soft_labels() -> None:
    one, other = (STUDENT.clone().requires_grad_() for _ in range(2))
    distillation_loss(one, TEACHER, 2.0).backward()
    (4 * F.cross_entropy(other / 2, (TEACHER / 2).softmax(1))).backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_heads_are_softmaxes_of_their_own() -> None:
    parts = distillation_loss(STUDENT[:, :3], TEACHER[:, :3], 2.0) + distillation_loss(
        STUDENT[:, 3:], TEACHER[:, 3:], 2.0
    )
    torch.testing.assert_close(distillation_loss(STUDENT, TEACHER, 2.0, [3, 2]), parts)
    lifted = STUDENT + torch.tensor([0.0, 0, 0, 9, 9])  # between heads nothing is compared
    torch.testing.assert_close(distillation_loss(lifted, TEACHER, 2.0, [3, 2]), parts)


def test_a_teacher_keeps_the_outputs_of_the_network() -> None:
    backbone, classifier = (
        build("resnet8").eval(),
        Classifier("linear", random_prototypes(4, 64, torch.Generator().manual_seed(0))),
    )
    view = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    teacher = Teacher(backbone, classifier)
    with torch.no_grad():
        before = outputs(backbone, classifier, view)
        for parameter in (*backbone.parameters(), *classifier.parameters()):
            parameter.add_(0.1)
        after = outputs(backbone, classifier, view)
    for old, taught, new in zip(before, teacher(view), after, strict=True):
        assert torch.equal(old, taught)
        assert not taught.requires_grad
        assert not torch.allclose(new, taught)
    assert all(p.requires_grad for p in (*backbone.parameters(), *classifier.parameters()))


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"temperature": 0.0}])
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        DistillationConfig(**wrong)
