"""Test the history of a class set: in which session each class was learnt."""

import torch

from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.classes import SupportSet
from fewmore.classifier.history import class_sessions


def shots(name: str, seed: int, count: int = 2) -> SupportSet:
    return SupportSet(name, torch.rand(count, 4, generator=torch.Generator().manual_seed(seed)))


def test_a_refined_class_stays_in_its_session_and_in_its_position():
    trained = ClassSet.from_training([shots("robin", 0).to_class(), shots("wren", 1).to_class()])
    learnt = trained.learn([shots("okapi", 2)])
    refined = learnt.learn([shots("zebra", 3), shots("robin", 4), shots("okapi", 5)])
    assert refined.names == ("robin", "wren", "okapi", "zebra")
    assert class_sessions(refined.history) == {"robin": 0, "wren": 0, "okapi": 1, "zebra": 2}
    assert [known.count for known in refined.classes] == [4, 2, 4, 2]


def test_a_class_that_was_forgotten_and_learnt_again_is_of_the_later_session():
    trained = ClassSet.from_training([shots("robin", 0).to_class(), shots("wren", 1).to_class()])
    again = trained.forget(["robin"]).learn([shots("robin", 2)]).rename("wren", "bird")
    assert class_sessions(again.history) == {"robin": 1, "bird": 0}
