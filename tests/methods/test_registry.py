"""Test the table of methods, and methods of a user's own file."""

import dataclasses
import importlib
import inspect
import sys
import threading
from pathlib import Path

import pytest

from fewmore import plugins
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError, MethodError, MissingData, UnknownName
from fewmore.methods import METHODS, find
from fewmore.methods.base import FrozenBackbone, Method, Recipe, ScoresPerView, TrainedNetwork
from fewmore.methods.class_means import ClassMeans
from fewmore.methods.exemplars import NearestMean
from fewmore.methods.recipe import override
from fewmore.research.recipes import recipe
from fewmore.training.runtime import Runtime

MINE = '''
from fewmore.methods.base import Method

class Mine(Method):
    """A method of my own.

    More about it.
    """
    keeps = {keeps!r}
    tag = {tag!r}
    def fit(self, base): ...
    def learn(self, session): ...
    def scores(self, images): ...
    def state(self): ...
    def restore(self, state): ...

class Half(Method):
    def fit(self, base): ...
    def learn(self, session): ...

class Other: ...

number = 3
'''


@pytest.fixture
def mine(tmp_path):
    def mine(folder: str = "", keeps: str | None = None, tag: str = "") -> str:
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(MINE.format(keeps=keeps, tag=tag))
        return str(path)

    return mine


@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_the_table_says_what_its_class_does(name, tiny_recipe_for):
    info = METHODS[name]
    cls = info.load()
    assert info.name == name
    assert find(name) is info
    assert info.title
    assert info.paper
    assert info.memory == (cls.keeps or "none")
    recipe = tiny_recipe_for(name)
    method = info.build(recipe, Runtime(), 7)
    assert type(method) is cls
    assert (method.recipe, method.seed, method.sessions) == (recipe, 7, 0)


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_in_the_methods_file(name):
    config_type = METHODS[name].load().config_type
    assert config_type.__name__ == "Config"
    assert config_type.__module__ == METHODS[name].target.split(":")[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config_type(), dataclasses.fields(config_type)[0].name, None)


@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.overrides])
def test_a_variant_differs_from_its_class_in_its_overrides(name):
    info, benchmark = METHODS[name], BENCHMARKS["cifar100"]
    config = info.config("official", benchmark)
    plain = info.load().config_type.for_recipe("official", benchmark)
    assert config == override(plain, info.overrides)
    assert config != plain or name == "decoupled-cosine"


def test_a_recipe_of_another_method_is_refused(tiny_recipe_for):
    with pytest.raises(ConfigError, match="CEC"):
        METHODS["cec"].build(tiny_recipe_for("cosine"), Runtime(), 0)


ABSTRACT = (Method, TrainedNetwork, FrozenBackbone, ScoresPerView, NearestMean)


@pytest.mark.parametrize("cls", sorted({info.load() for info in METHODS.values()}, key=str))
def test_a_class_is_abstract_or_final(cls):
    assert not inspect.isabstract(cls)
    assert {*cls.__bases__} <= {*ABSTRACT, ClassMeans}, "no method inherits from another"
    source = inspect.getsource(importlib.import_module(cls.__module__))
    others = {info.load().__module__ for info in METHODS.values()} - {cls.__module__}
    assert not any(other in source for other in others), "no method imports another"
    assert "https://" in (inspect.getmodule(cls).__doc__ or "") or METHODS[
        "joint"
    ].target.startswith(cls.__module__)


def test_the_base_classes_are_abstract(tiny_recipe):
    for cls in ABSTRACT:
        with pytest.raises(TypeError, match="abstract"):
            cls(tiny_recipe, Runtime(), 0)


def test_an_unknown_name_is_suggested():
    with pytest.raises(
        UnknownName, match="no method is named 'decoupled-cosin': did you mean decoupled-cosine"
    ):
        find("decoupled-cosin")
    with pytest.raises(
        UnknownName,
        match=r"no method is named 'zzz': there are: .*finetune.*path/to/file.py:ClassName",
    ):
        find("zzz")
    with pytest.raises(UnknownName, match=r"no method is named 'mine\.txt:Mine'"):
        find("mine.txt:Mine")


def test_a_users_class_is_found(mine, tiny_recipe):
    info = find(f"{mine()}:Mine")
    assert (info.name, info.title, info.memory) == ("mine", "A method of my own.", "none")
    assert info.paper == mine()
    method = info.build(tiny_recipe, Runtime(), 3)
    assert isinstance(method, Method)
    assert (method.recipe, method.seed) == (tiny_recipe, 3)
    assert isinstance(method.recipe, Recipe)


def test_what_a_users_class_keeps_is_declared(mine):
    assert find(f"{mine(keeps='two images a class')}:Mine").memory == "two images a class"


def test_a_relative_path(mine, monkeypatch, tmp_path):
    mine()
    monkeypatch.chdir(tmp_path)
    assert find("mine.py:Mine").title == "A method of my own."


def test_a_class_without_a_docstring_has_its_name_as_title(tmp_path):
    for text in ("", '"""   """'):
        (tmp_path / "mine.py").write_text(
            MINE.format(keeps=None, tag="") + f"\nclass Silent(Mine):\n    {text or 'pass'}\n"
        )
        assert find(f"{tmp_path / 'mine.py'}:Silent").title == "Silent"


def test_two_files_of_the_same_name_are_two_methods(mine, tiny_recipe):
    one, other = find(f"{mine('a', tag='one')}:Mine"), find(f"{mine('b', tag='other')}:Mine")
    assert [info.build(tiny_recipe, Runtime(), 0).tag for info in (one, other)] == ["one", "other"]


def test_a_missing_file(tmp_path):
    with pytest.raises(MissingData, match=r"none\.py"):
        find(f"{tmp_path}/none.py:Mine")


def test_a_file_without_a_class_names_those_in_it(mine, tmp_path):
    path = mine()
    with pytest.raises(MethodError, match=rf"is a file: name the class of the method, {path}:Mine"):
        find(str(path))
    empty = tmp_path / "empty.py"
    empty.write_text("from fewmore.methods.base import Method\n")
    with pytest.raises(MethodError, match=r"without a method: .* from fewmore.methods.base.Method"):
        find(str(empty))
    with pytest.raises(MissingData, match=r"there is no file none\.py"):
        find("none.py")


def test_a_missing_class_is_suggested(mine):
    with pytest.raises(
        UnknownName, match=r"no class in .*mine.py is named 'Mime': did you mean Mine"
    ):
        find(f"{mine()}:Mime")
    with pytest.raises(UnknownName, match=r"no class in .*mine.py is named ''"):
        find(f"{mine()}:")


@pytest.mark.parametrize("name", ["Other", "number"])
def test_a_class_that_is_no_method_is_refused(name, mine):
    with pytest.raises(
        MethodError,
        match=rf"{name} in .*mine.py is not a Method: derive it from fewmore.methods.base.Method",
    ):
        find(f"{mine()}:{name}")


def test_an_abstract_class_is_refused(mine):
    with pytest.raises(
        MethodError, match=r"Half in .*mine.py does not implement restore, scores, state"
    ):
        find(f"{mine()}:Half")
    with pytest.raises(
        MethodError, match=r"Method in .*mine.py does not implement fit, learn, restore"
    ):
        find(f"{mine()}:Method")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def", r"SyntaxError: invalid syntax \("),
        ("__import__('json').loads('{')", "JSONDecodeError: Expecting property name"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_loaded(text, complaint, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(
        MethodError, match=rf"mine.py fails when it is loaded: {complaint}.*mine\.py, line 1\)$"
    ):
        find(f"{tmp_path / 'mine.py'}:Mine")


def test_an_error_in_a_sibling_is_shown_with_its_line(tmp_path):
    (tmp_path / "sibling_that_fails.py").write_text("one = 1\n\none.two\n")
    (tmp_path / "mine.py").write_text("import sibling_that_fails")
    with pytest.raises(MethodError, match=r"mine\.py fails .*sibling_that_fails\.py, line 3\)$"):
        find(f"{tmp_path / 'mine.py'}:Mine")


def test_modules_of_the_files_folder_can_be_imported(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = mine()
    (tmp_path / "helpers_of_mine.py").write_text("answer = 42")
    text = "from helpers_of_mine import answer\n" + (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("tag = ''", "tag = answer"))
    assert find(f"{path}:Mine").load().tag == 42


def test_a_class_may_have_a_name_of_its_own(mine, tmp_path):
    path = tmp_path / "mine.py"

    def named(name: object) -> str:
        mine()
        path.write_text(path.read_text().replace("tag = ''", f"name = {name!r}"))
        return find(f"{path}:Mine").name

    assert named("my-method") == "my-method"
    assert named("linear") == "own-linear", "the registered method's results are not its own"
    for wrong in ("a/b", "two words", "a.b", 3):
        with pytest.raises(MethodError, match=r"name of Mine in .*letters, digits"):
            named(wrong)


def test_a_class_called_linear_is_not_the_registered_one(linear):
    assert find(f"{linear}:Linear").name == "own-linear"


def test_a_module_and_its_class(mine, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_module_of_methods.py").write_text(Path(mine()).read_text())
    info = find("a_module_of_methods:Mine")
    assert (info.name, info.title) == ("mine", "A method of my own.")
    assert info.source is not None
    assert info.source["file"].endswith("a_module_of_methods.py")
    (tmp_path / "a_module_that_fails.py").write_text("1 / 0")
    with pytest.raises(MethodError, match=r"division by zero .*a_module_that_fails\.py, line 1"):
        find("a_module_that_fails:Mine")
    with pytest.raises(UnknownName, match=r"no class in a_module_of_methods is named 'Mime'"):
        find("a_module_of_methods:Mime")
    for missing in ("no_such_module:Mine", "no_such.module:Mine", ":Mine", "..:Mine"):
        with pytest.raises(UnknownName, match="no method is named"):
            find(missing)


def test_a_wrong_constructor_is_refused(mine, tmp_path):
    mine()
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text + "\nclass Odd(Mine):\n    def __init__(self): ...\n")
    with pytest.raises(MethodError, match=r"Odd\(recipe, runtime, seed\): too many positional"):
        find(f"{tmp_path / 'mine.py'}:Odd")


# ---- settings of a user's method


LINEAR = """
from dataclasses import dataclass, field
from fewmore.methods.base import Method, MethodConfig
from fewmore.training.learn_session import SessionConfig

@dataclass(frozen=True)
class Config(MethodConfig):
    power: float = 0.5
    session: SessionConfig = field(default_factory=lambda: SessionConfig(epochs=7))

    @classmethod
    def for_recipe(cls, recipe, benchmark):
        return cls(power=1.0 if recipe == "paper" else 0.5)

@dataclass(frozen=True)
class Taken(MethodConfig):
    backbone: str = "mine"

class Undecorated(MethodConfig):
    power: float = 0.5

class Linear(Method):
    config_type = Config
    def fit(self, base): ...
    def learn(self, session): ...
    def scores(self, images): ...
    def state(self): ...
    def restore(self, state): ...

class Plain(Linear):
    config_type = MethodConfig

class Wrong(Linear):
    config_type = Taken

class Bare(Linear):
    config_type = Undecorated

class Odd(Linear):
    config_type = dict
"""


@pytest.fixture
def linear(tmp_path):
    path = tmp_path / "linear.py"
    path.write_text(LINEAR)
    return path


def test_a_class_called_linear_has_its_own_settings(linear):
    name = f"{linear}:Linear"
    made = recipe("quick", BENCHMARKS["cifar100"], name, ["power=2", "session.lr=0.3"])
    assert type(made.method) is find(name).load().config_type
    assert (made.method.power, made.method.session.epochs, made.method.session.lr) == (2, 7, 0.3)
    assert made.pretrain == recipe("quick", BENCHMARKS["cifar100"], "cec").pretrain
    assert recipe("paper", BENCHMARKS["cifar100"], name).method.power == 1
    method = find(name).build(made, Runtime(), 0)
    assert method.config is made.method


def test_a_class_without_settings_gets_none(linear):
    made = recipe("quick", BENCHMARKS["cifar100"], f"{linear}:Plain")
    assert dataclasses.fields(made.method) == ()
    with pytest.raises(UnknownName, match="power"):
        recipe("quick", BENCHMARKS["cifar100"], f"{linear}:Plain", ["power=2"])


@pytest.mark.parametrize(
    ("name", "word"), [("Wrong", "backbone"), ("Bare", "dataclass"), ("Odd", "dataclass")]
)
def test_settings_that_cannot_be_set_are_refused(name, word, linear):
    with pytest.raises(MethodError, match=word):
        find(f"{linear}:{name}")


def test_a_file_is_loaded_again_where_it_has_changed(mine):
    first = find(f"{mine(tag='one')}:Mine").load()
    assert find(f"{mine(tag='one')}:Mine").load() is first
    assert find(f"{mine(tag='two')}:Mine").load().tag == "two"
    assert first.tag == "one"


def with_helper(folder: Path, strength: float, method: str = "mine") -> str:
    """Write a method whose docstring is all but its strength, which is in another file."""
    (folder / "strengths").mkdir(parents=True, exist_ok=True)
    (folder / "strengths" / "__init__.py").write_text("from numbers_of_mine import STRENGTH\n")
    (folder / "numbers_of_mine.py").write_text(f"STRENGTH = {strength}\n")
    text = MINE.format(keeps=None, tag="")
    text = text.replace("tag = ''", "strength = STRENGTH")
    (folder / f"{method}.py").write_text(f"from strengths import STRENGTH\n{text}")
    return f"{folder / method}.py:Mine"


@pytest.fixture
def clean_modules(monkeypatch):
    """Forget afterwards what the files of a test imported."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("strengths", "numbers_of_mine"):
        sys.modules.pop(name, None)


def test_an_edited_module_of_the_files_folder_is_another_version(tmp_path, clean_modules):
    name = with_helper(tmp_path, 0.1)
    before = find(name)
    assert before.load().strength == 0.1
    with_helper(tmp_path, 0.2)
    after = find(name)
    assert after.load().strength == 0.2
    assert before.source["sha256"] != after.source["sha256"]
    other = find(with_helper(tmp_path, 0.2, "other"))
    assert other.load().strength == 0.2
    with_helper(tmp_path, 0.1)
    assert find(name).source["sha256"] == before.source["sha256"]


def test_a_module_of_another_folder_is_not_taken_for_that_of_the_file(tmp_path, clean_modules):
    assert find(with_helper(tmp_path / "v1", 0.1)).load().strength == 0.1
    with pytest.raises(MethodError, match=r"another numbers_of_mine was imported .*v1/numbers"):
        find(with_helper(tmp_path / "v2", 0.2)).load()
    assert find(with_helper(tmp_path / "v1", 0.3)).load().strength == 0.3


def test_folders_of_modules_need_no_init_file(tmp_path, clean_modules):
    def named(strength: float, line: str) -> str:
        name = with_helper(tmp_path, strength)
        (tmp_path / "strengths" / "__init__.py").unlink()
        (tmp_path / "strengths" / "inside.py").write_text("from .number import STRENGTH\n")
        (tmp_path / "strengths" / "number.py").write_text(f"STRENGTH = {strength}\n")
        text = (tmp_path / "mine.py").read_text()
        (tmp_path / "mine.py").write_text(text.replace("from strengths import STRENGTH", line))
        return name

    for line in (
        "from strengths.inside import STRENGTH",
        "from strengths import inside; STRENGTH = inside.STRENGTH",
    ):
        found = [find(named(strength, line)) for strength in (0.1, 0.2)]
        assert [method.load().strength for method in found] == [0.1, 0.2]
        assert found[0].source["sha256"] != found[1].source["sha256"]
    inside = [file.name for file in plugins.files_of(tmp_path / "mine.py")]
    assert inside == ["mine.py", "inside.py", "number.py"]


def test_a_module_edited_after_a_failure_is_imported_anew(tmp_path, clean_modules):
    name = with_helper(tmp_path, 0.1)
    path = tmp_path / "mine.py"
    path.write_text(f"{path.read_text()}\n1 / 0\n")
    with pytest.raises(MethodError, match="ZeroDivisionError"):
        find(name)
    assert find(with_helper(tmp_path, 0.2)).load().strength == 0.2


def test_the_hash_of_a_file_is_that_of_what_was_loaded(mine):
    name = f"{mine(tag='one')}:Mine"
    method = find(name)
    mine(tag="two")
    module = sys.modules[method.load().__module__]
    assert plugins.source_of(module)["sha256"] == method.source["sha256"]
    assert find(name).source["sha256"] != method.source["sha256"]


def test_a_file_may_load_another_one(mine, tmp_path, monkeypatch):
    (tmp_path / "outer.py").write_text(
        "from fewmore.methods import find\n"
        f"class Outer(find({f'{mine()}:Mine'!r}).load()):\n    'Mine, and more.'\n"
    )
    found = []
    # A lock that waits for itself must not stop this and the other tests.
    monkeypatch.setattr(plugins, "_LOADING", type(plugins._LOADING)())
    thread = threading.Thread(
        target=lambda: found.append(find(f"{tmp_path / 'outer.py'}:Outer")), daemon=True
    )
    thread.start()
    thread.join(10)
    assert [method.title for method in found] == ["Mine, and more."]
