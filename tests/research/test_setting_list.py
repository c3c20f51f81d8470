"""Test the list of a method's settings."""

import dataclasses

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError
from fewmore.methods import METHODS
from fewmore.research.recipes import recipe
from fewmore.research.setting_list import list_settings

OWN = '''
from dataclasses import dataclass
from fewmore.methods.base import Method, MethodConfig

@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold my settings.

    Attributes:
        angles: in degrees,
            of the copies.
        steps: of training.
    """

    alpha: float = 0.5  # weight of my loss
    # Whether the images are
    # turned as well.
    turned: bool = True
    angles: tuple[int, ...] = (90, 180)
    steps: int | None = None
    silent: str = "#"

class Mine(Method):
    config_type = Config
    def fit(self, base): ...
    def learn(self, session): ...
    def scores(self, images): ...
    def state(self): ...
    def restore(self, state): ...
'''


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_has_a_meaning_and_can_be_set_to_its_value(method):
    made = recipe("official", BENCHMARKS["cifar100"], method)
    settings = list_settings(made)
    assert [setting.name for setting in settings if not setting.meaning] == []
    texts = [f"{setting.name}={setting.value}" for setting in settings]
    texts = [text for text in texts if has_effect(text, method)]
    assert len(texts) == len(settings) - count_unread(made)
    assert recipe("official", BENCHMARKS["cifar100"], method, texts) == made


def count_unread(config):
    """Count the settings that others leave without effect, as the configs say it themselves."""
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    below = sum(count_unread(part) for part in parts if dataclasses.is_dataclass(part))
    return len(getattr(config, "unread", {})) + below


def has_effect(text, method):
    """Say whether a setting is read beside the others: one that is not is refused."""
    try:
        recipe("official", BENCHMARKS["cifar100"], method, [text])
    except ConfigError as error:
        if "it has no effect with" in str(error):
            return False
        raise
    return True


def test_own_settings_come_first_and_say_what_their_class_says(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    made = recipe("quick", BENCHMARKS["glyphs"], f"{tmp_path / 'mine.py'}:Mine")
    settings = list_settings(made)
    own = [(setting.name, setting.value, setting.meaning) for setting in settings if setting.own]
    assert own == [
        ("alpha", "0.5", "weight of my loss"),
        ("turned", "true", "Whether the images are turned as well"),
        ("angles", "90,180", "in degrees, of the copies"),
        ("steps", "none", "of training"),
        ("silent", "#", ""),
    ]
    common = {setting.name: setting for setting in settings[len(own) :]}
    assert common["transform.size"].meaning == "side of the view, in pixels"
    assert {"name", "method"}.isdisjoint(common)
