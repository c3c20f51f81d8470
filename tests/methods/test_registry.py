"""The table of methods, and methods of one's own."""

import importlib
import inspect

import pytest

from fewmore.errors import MethodError, MissingData, UnknownName
from fewmore.methods import METHODS, MethodInfo, find
from fewmore.methods.base import FrozenBackbone, Method, Recipe
from fewmore.methods.exemplars import NearestMean
from fewmore.training.loop import Runtime

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


def class_of(info: MethodInfo) -> type[Method]:
    module, name = info.target.split(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_the_table_says_what_its_class_does(name, tiny_recipe):
    info = METHODS[name]
    cls = class_of(info)
    assert info.name == name
    assert find(name) is info
    assert info.title
    assert info.paper
    assert info.memory == (cls.keeps or "none")
    method = info.build(tiny_recipe, Runtime(), 7)
    assert type(method) is cls
    assert (method.recipe, method.seed, method.sessions) == (tiny_recipe, 7, 0)
    assert all(getattr(method, option) == value for option, value in info.options.items())


@pytest.mark.parametrize("cls", sorted({class_of(info) for info in METHODS.values()}, key=str))
def test_a_class_is_abstract_or_final(cls):
    assert not inspect.isabstract(cls)
    assert cls.__bases__ in ((Method,), (FrozenBackbone,), (NearestMean,)), (
        "no method inherits from another"
    )
    source = inspect.getsource(importlib.import_module(cls.__module__))
    others = {class_of(info).__module__ for info in METHODS.values()} - {cls.__module__}
    assert not any(other in source for other in others), "no method imports another"
    assert "https://" in (inspect.getmodule(cls).__doc__ or "") or METHODS[
        "joint"
    ].target.startswith(cls.__module__)


def test_the_base_classes_are_abstract(tiny_recipe):
    for cls in (Method, FrozenBackbone, NearestMean):
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


def test_a_class_of_ones_own_is_found(mine, tiny_recipe):
    info = find(f"{mine()}:Mine")
    assert (info.name, info.title, info.memory) == ("mine", "A method of my own.", "none")
    assert info.paper == mine()
    method = info.build(tiny_recipe, Runtime(), 3)
    assert isinstance(method, Method)
    assert (method.recipe, method.seed) == (tiny_recipe, 3)
    assert isinstance(method.recipe, Recipe)


def test_what_ones_own_class_keeps_is_declared(mine):
    assert find(f"{mine(keeps='two images a class')}:Mine").memory == "two images a class"


def test_a_relative_path(mine, monkeypatch, tmp_path):
    mine()
    monkeypatch.chdir(tmp_path)
    assert find("mine.py:Mine").title == "A method of my own."


def test_a_class_without_a_docstring_has_its_name_as_title(mine, tmp_path):
    for text in ("", '"""   """'):
        (tmp_path / "mine.py").write_text(
            MINE.format(keeps=None, tag="") + f"\nclass Silent(Mine):\n    {text or 'pass'}\n"
        )
        assert find(f"{tmp_path / 'mine.py'}:Silent").title == "Silent"


def test_two_files_of_the_same_name_are_two_methods(mine, tiny_recipe):
    one, other = find(f"{mine('a', tag='one')}:Mine"), find(f"{mine('b', tag='other')}:Mine")
    assert [info.build(tiny_recipe, Runtime(), 0).tag for info in (one, other)] == ["one", "other"]


def test_a_missing_file(tmp_path):
    with pytest.raises(
        MissingData,
        match=rf"there is no file {tmp_path}/none.py: give the path of the Python file that holds Mine",
    ):
        find(f"{tmp_path}/none.py:Mine")


def test_a_missing_class_is_suggested(mine):
    with pytest.raises(
        UnknownName, match=r"no class in .*mine.py is named 'Mime': did you mean Mine"
    ):
        find(f"{mine()}:Mime")
    with pytest.raises(UnknownName, match=r"no class in .*mine.py is named ''"):
        find(f"{mine()}:")


@pytest.mark.parametrize("name", ["Other", "number"])
def test_what_is_not_a_method_is_refused(name, mine):
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
        ("def", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_loaded(text, complaint, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(MethodError, match=rf"mine.py fails when it is loaded: {complaint}"):
        find(f"{tmp_path / 'mine.py'}:Mine")
