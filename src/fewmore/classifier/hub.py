"""Share a classifier on the Hugging Face Hub: a folder with the model file and a model card."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewmore.classifier.card import model_card
from fewmore.errors import DownloadError, FewmoreError, ModelFileError, first_line

if TYPE_CHECKING:
    from fewmore.classifier.estimator import IncrementalClassifier

MODEL_FILE = "model.fewmore"
CARD = "README.md"


def save(
    classifier: "IncrementalClassifier", folder: str | Path, name: str | None, license: str | None
) -> None:
    """Write the model file and, unless there is one already, the model card into a folder."""
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        classifier.save(folder / MODEL_FILE)
        if not (folder / CARD).exists():
            card = model_card(classifier.info(), name or folder.resolve().name, license)
            (folder / CARD).write_text(card, encoding="utf-8")
    except OSError as error:
        raise ModelFileError(
            f"{folder} cannot be written ({error.strerror or error}): give a folder of yours"
        ) from error


def find(source: str | Path, **options: Any) -> Path:
    """Return the model file of a folder, or of a repository on the Hub, which is downloaded."""
    folder = Path(source).expanduser()
    if folder.exists():
        return folder / MODEL_FILE if folder.is_dir() else folder
    hub = _import_hub()
    try:
        return Path(hub.hf_hub_download(str(source), MODEL_FILE, **options))
    except Exception as error:  # of the Hub's package, or of the one it makes requests with
        raise DownloadError(
            f"there is no folder {source}, and no {MODEL_FILE} could be had from the Hub "
            f"({first_line(error)}): give a folder, or a repository such as user/birds"
        ) from error


def push(
    classifier: "IncrementalClassifier", repository: str, license: str | None, **options: Any
) -> str:
    """Upload the model file and a new model card by the Hub's own mixin; return the address."""
    hub = _import_hub()

    class Pushed(hub.ModelHubMixin):  # type: ignore[name-defined,misc]
        def _save_pretrained(self, save_directory: Path) -> None:
            save(classifier, save_directory, repository, license)

    try:
        return str(Pushed().push_to_hub(repository, **options))
    except FewmoreError:
        raise
    except Exception as error:
        raise DownloadError(
            f"the model could not be pushed to {repository} ({first_line(error)}): log in with "
            "`hf auth login`, and give a repository of yours"
        ) from error


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise DownloadError("the Hub takes one more package: pip install 'fewmore[hub]'") from error
    return huggingface_hub
