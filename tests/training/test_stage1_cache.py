"""Test the stage-1 cache: what decides a file's name, and what is taken from it."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from filelock import FileLock
from torch import Tensor

import fewmore
from fewmore.data.images import ImageSet
from fewmore.methods import network as network_module
from fewmore.methods.base import Recipe
from fewmore.methods.network import Network
from fewmore.nn.backbones import build
from fewmore.training import stage1_cache
from fewmore.training.checkpoint import read_state
from fewmore.training.runtime import Round, Runtime
from fewmore.training.stage1_cache import SOURCES, cache_file, source_digest

CUDA = torch.device("cuda")


@dataclass
class Cache:
    """Fit networks with one cache folder, and count the trainings."""

    folder: Path
    recipe: Recipe
    images: ImageSet
    reports: list[Round] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  # of `pretrain`

    @property
    def trainings(self) -> int:
        """Return how often stage 1 was trained."""
        return len(self.calls)

    def fit(
        self,
        recipe: Recipe | None = None,
        images: ImageSet | None = None,
        similarity: str = "cosine",
        seed: int = 0,
        stage: str = "pretrain",
    ) -> Network:
        """Fit a network, with the settings of this cache where no others are given."""
        runtime = Runtime(stage1_cache=self.folder, on_round=self.reports.append)
        network = Network(recipe or self.recipe, runtime)
        network.fit(images or self.images, similarity, seed, stage)
        return network

    def files(self) -> list[Path]:
        """Return the networks in the folder."""
        return sorted(self.folder.glob("*.safetensors"))


@pytest.fixture
def cache(
    tmp_path: Path,
    tiny_recipe: Recipe,
    tiny_images: Callable[..., ImageSet],
    monkeypatch: pytest.MonkeyPatch,
) -> Cache:
    """Return an empty cache, for a stage 1 that is over at once."""
    made = Cache(tmp_path / "cache", tiny_recipe, tiny_images())
    pretrain = network_module.pretrain

    def counted(*args: object) -> dict[str, Tensor]:
        made.calls.append("pretrain")
        return pretrain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(network_module, "pretrain", counted)
    return made


def same(one: Network, other: Network) -> bool:
    """Say whether two networks have learnt the same, bit for bit."""

    def tensors(network: Network) -> dict[str, Tensor]:
        return {**network.backbone.state_dict(), **network.classifier.state_dict()}

    a = tensors(one)
    b = tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# What is taken over


def test_the_same_stage_1_is_trained_once(cache: Cache) -> None:
    trained = cache.fit()
    taken_over = cache.fit()
    assert cache.trainings == 1
    assert len(cache.files()) == 1
    assert same(trained, taken_over)
    assert taken_over.classifier.similarity == "cosine"


def test_a_cache_changes_nothing_in_what_is_learnt(cache: Cache) -> None:
    without = Network(cache.recipe, Runtime())
    without.fit(cache.images, "cosine", 0)
    assert same(without, cache.fit())
    assert same(without, cache.fit())


def test_without_a_folder_nothing_is_written(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Network(cache.recipe, Runtime()).fit(cache.images, "cosine", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_shared_stage_1_reports_the_seconds_of_its_training(cache: Cache) -> None:
    cache.fit()
    trained = list(cache.reports)
    cache.reports.clear()
    cache.fit()
    (report,) = cache.reports
    epochs = cache.recipe.pretrain.epochs
    assert (report.stage, report.round, report.rounds) == ("pretrain (shared)", epochs, epochs)
    assert report.seconds == read_state(cache.files()[0])["seconds"]
    assert report.seconds >= sum(r.seconds for r in trained) > 0


def test_a_training_that_fails_leaves_no_file_and_no_lock(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(network_module, "pretrain", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            cache.fit()
    assert cache.files() == []
    cache.fit()
    assert cache.trainings == 1


def test_stage_1_of_classes_without_a_file_is_not_shared(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, the code of a class may be another one the next time."""

    @dataclass(frozen=True)
    class Typed(type(cache.recipe.pretrain)):  # type: ignore[misc]
        """Hold settings of one's own."""

    notebook = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    monkeypatch.setattr(Typed, "__module__", notebook.__name__)
    values = {f.name: getattr(cache.recipe.pretrain, f.name) for f in fields(cache.recipe.pretrain)}
    for _ in range(2):
        cache.fit(replace(cache.recipe, pretrain=Typed(**values)))
    assert cache.trainings == 2
    assert cache.files() == []


# What decides the name of a file


CHANGES: dict[str, Callable[[Cache], dict[str, object]]] = {
    "pretrain": lambda cache: {
        "recipe": replace(cache.recipe, pretrain=replace(cache.recipe.pretrain, lr=0.05))
    },
    "transform": lambda cache: {
        "recipe": replace(cache.recipe, transform=replace(cache.recipe.transform, flip=True))
    },
    "backbone": lambda cache: {"recipe": replace(cache.recipe, backbone="resnet20")},
    "similarity": lambda cache: {"similarity": "linear"},
    "seed": lambda cache: {"seed": 1},
    "stage": lambda cache: {"stage": "session 1"},
    "images": lambda cache: {"images": cache.images.select(torch.arange(len(cache.images) - 1))},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_stage_1_is_trained_on_its_own(cache: Cache, change: str) -> None:
    cache.fit()
    cache.fit(**CHANGES[change](cache))  # type: ignore[arg-type]
    assert cache.trainings == 2
    assert len(cache.files()) == 2


def test_settings_that_stage_1_does_not_read_do_not_count(cache: Cache) -> None:
    cache.fit()
    cache.fit(replace(cache.recipe, name="another", method="settings of a method"))
    transform = replace(cache.recipe.transform, test_views=("plain", "flip"))
    cache.fit(replace(cache.recipe, transform=transform))
    assert cache.trainings == 1


def test_the_content_of_the_weights_counts_and_not_their_path(cache: Cache, tmp_path: Path) -> None:
    first = tmp_path / "first.pth"
    second = tmp_path / "second.pth"
    torch.save(build("resnet8", 1).state_dict(), first)
    shutil.copy(first, second)
    cache.fit()
    cache.fit(replace(cache.recipe, weights=str(first)))
    assert cache.trainings == 2
    cache.fit(replace(cache.recipe, weights=str(second)))
    assert cache.trainings == 2, "the same content at another path"
    torch.save(build("resnet8", 2).state_dict(), first)
    cache.fit(replace(cache.recipe, weights=str(first)))
    assert cache.trainings == 3, "another content at the same path"


def test_device_precision_and_fast_path_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    runtimes = [
        Runtime(),
        *(Runtime(CUDA, precision) for precision in ("fp32", "tf32", "bf16", "fp16")),
        Runtime(CUDA, "bf16", accel=False),
    ]
    names = {cache_file(Path(), runtime, None, "settings") for runtime in runtimes}
    assert len(names) == len(runtimes)
    by_default = cache_file(Path(), Runtime(CUDA), None, "settings")
    assert by_default == cache_file(Path(), Runtime(CUDA, "bf16"), None, "settings")


def test_on_a_cpu_the_threads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        names.add(cache_file(Path(), Runtime(), None, "settings"))
    assert len(names) == 2, "a sum over other pieces has other rounding"


def test_the_precision_that_is_used_counts() -> None:
    """Check it because a CPU trains in fp32 where fp16 was asked for, and in bf16."""
    names = [cache_file(Path(), Runtime(precision=p), None, "") for p in (None, "fp16", "bf16")]
    assert names[0] == names[1] != names[2]


# The source files


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the package, from which the digest of the source files is taken."""
    root = tmp_path / "fewmore"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(fewmore.__file__).parent, root, ignore=ignored)
    monkeypatch.setattr(fewmore, "__file__", str(root / "__init__.py"))
    source_digest.cache_clear()
    yield root
    source_digest.cache_clear()


def digest_now() -> str:
    """Return the digest of the files as they are now."""
    source_digest.cache_clear()
    return source_digest()


@pytest.mark.parametrize(
    "path",
    [
        "random.py",
        "data/augment.py",
        "nn/layers.py",
        "training/loop.py",
        "training/optimizer.py",
        "methods/network.py",
    ],
)
def test_an_edited_source_file_changes_the_digest(source: Path, path: str) -> None:
    before = digest_now()
    assert digest_now() == before
    with (source / path).open("a") as file:
        file.write("\n")
    assert digest_now() != before


def test_new_removed_and_renamed_source_files_change_the_digest(source: Path) -> None:
    digests = [digest_now()]
    (source / "nn" / "new.py").write_text("")
    digests.append(digest_now())
    (source / "nn" / "new.py").rename(source / "nn" / "renamed.py")
    digests.append(digest_now())
    shutil.rmtree(source / "data")
    digests.append(digest_now())
    assert len(set(digests)) == 4


@pytest.mark.parametrize("path", ["methods/cec.py", "cli/new.py", "nn/notes.txt"])
def test_files_that_stage_1_does_not_run_through_do_not_count(source: Path, path: str) -> None:
    before = digest_now()
    with (source / path).open("a") as file:
        file.write("\n")
    assert digest_now() == before


def test_after_an_edit_stage_1_is_trained_anew(cache: Cache, source: Path) -> None:
    cache.fit()
    with (source / "training" / "pretrain.py").open("a") as file:
        file.write("# an edit\n")
    source_digest.cache_clear()  # as in a new process
    cache.fit()
    cache.fit()
    assert cache.trainings == 2
    assert len(cache.files()) == 2


def test_the_listed_sources_decide_the_digest(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_now()
    monkeypatch.setattr(stage1_cache, "SOURCES", ("random.py",))
    alone = digest_now()
    assert alone != before
    (source / "nn" / "layers.py").write_text("")
    assert digest_now() == alone


def test_all_that_stage_1_imports_is_listed() -> None:
    """Import stage 1 in a new process, and find each module of the project in the list."""
    decide_nothing = {"__init__.py", "errors.py", "io.py", "plugins.py"}
    tables = ("__init__", "features", "registry", "user_code")
    decide_nothing |= {f"methods/{name}.py" for name in tables}
    program = "import sys, fewmore.methods.network; print(*(m.__file__ for m in MODULES))"
    modules = "[m for name, m in sys.modules.items() if name.split('.')[0] == 'fewmore']"
    command = [sys.executable, "-c", program.replace("MODULES", modules)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    root = Path(fewmore.__file__).parent
    imported = {Path(file).relative_to(root).as_posix() for file in output.split()}
    assert "training/pretrain.py" in imported
    in_folders = {file for file in imported if file.split("/")[0] in SOURCES}
    assert imported - in_folders - set(SOURCES) <= decide_nothing


# Threads and processes


def in_threads(functions: list[Callable[[], object]]) -> list[object]:
    """Call functions in a thread each, and return what they return."""
    results: dict[int, object] = {}

    def call(number: int) -> None:
        results[number] = functions[number]()

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(functions))]


def test_two_threads_train_the_same_stage_1_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Barrier(2)
    pretrain = network_module.pretrain

    def slow(*args: object) -> dict[str, Tensor]:
        time.sleep(0.3)  # until the other thread is at the lock
        return pretrain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(network_module, "pretrain", slow)

    def fit() -> Network:
        begin.wait(60)
        return cache.fit()

    one, other = in_threads([fit, fit])
    assert cache.trainings == 1
    assert isinstance(one, Network)
    assert isinstance(other, Network)
    assert same(one, other)


def test_two_threads_with_different_settings_train_at_the_same_time(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_train = threading.Barrier(2)
    pretrain = network_module.pretrain

    def meeting(*args: object) -> dict[str, Tensor]:
        both_train.wait(60)  # fails where one waits for the other
        return pretrain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(network_module, "pretrain", meeting)
    in_threads([lambda: cache.fit(seed=0), lambda: cache.fit(seed=1)])
    assert cache.trainings == 2


# Holds a lock until it is killed.
HOLDER = """
import sys, time
from pathlib import Path
from fewmore.training.stage1_cache import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_run_of_another_process_is_waited_for_until_it_is_killed(cache: Cache) -> None:
    cache.fit()
    [path] = cache.files()
    path.unlink()
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        waiting = threading.Thread(target=cache.fit, daemon=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
            assert cache.trainings == 1
        finally:  # else a failed assertion would wait for it
            holder.kill()
    waiting.join(60)
    assert cache.trainings == 2
    assert cache.files() == [path]


def test_without_locks_nobody_waits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(FileLock, "acquire", no_lock)
    cache.fit()
    cache.fit()
    assert cache.trainings == 1
