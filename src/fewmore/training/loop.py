"""The one training loop: device, precision, schedule, checkpoint, resume.

A stage is rounds (epochs, or batches of episodes), a round is steps, and a step's input is one row of index tensors that
was drawn for the whole round. All randomness of a round comes from (seed, stage, round), so a run that resumes at a
round repeats it exactly. On a GPU a step is captured once as a CUDA graph and replayed; the host never waits for a
step, only for a round.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from fewmore.accel import warm_up as rehearsal
from fewmore.accel.side_streams import SideStreams, gradients_on
from fewmore.errors import CheckpointError, ConfigError
from fewmore.random import derive_seed
from fewmore.training.checkpoint import Checkpoint, State
from fewmore.training.sgd import SGD

KERNELS = 4  # that are tried: in the order of what cuDNN thinks of them, the fastest is hardly ever further down
FIRST = -1  # the priority of a step's chain of kernels: before what is done beside it
WARM_UP = 3  # steps before a capture, so that libraries have chosen their kernels


@dataclass(frozen=True)
class SGDConfig:
    """SGD with momentum, and a rate that falls at milestones."""

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = ()
    decay: float = 0.1

    def __post_init__(self) -> None:
        wrong = []
        if not (math.isfinite(self.lr) and self.lr >= 0):
            wrong.append(f"lr must be a number of at least 0, not {self.lr}")
        if not 0 <= self.momentum < 1:
            wrong.append(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.nesterov and self.momentum == 0:
            wrong.append("nesterov needs a momentum above 0")
        if self.weight_decay < 0:
            wrong.append(f"weight_decay must not be negative, and is {self.weight_decay}")
        if wrong:
            raise ConfigError("optimiser: " + "; ".join(wrong))

    def rate(self, round_: int) -> float:
        """The share of lr that is left in a round."""
        return self.decay ** sum(round_ >= m for m in self.milestones)


@dataclass(frozen=True)
class EpochsConfig(SGDConfig):
    """Training that goes over a set of images again and again. Milestones are epochs."""

    epochs: int = 100
    batch: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [
            f"{name} must be at least 1, not {value}"
            for name, value in (("epochs", self.epochs), ("batch", self.batch))
            if value < 1
        ]
        if wrong:
            raise ConfigError("; ".join(wrong))


@dataclass(frozen=True)
class Round:
    """What the loop reports after each round."""

    stage: str
    round: int  # rounds done
    rounds: int
    loss: float
    lr: float
    seconds: float


@dataclass
class Runtime:
    """Where and how a run is computed; nothing in here changes what is learnt but for rounding."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    half: bool = True  # bfloat16 autocast on a GPU; a CPU always computes in float32
    graphs: bool = True  # CUDA graphs on a GPU
    checkpoint: Checkpoint | None = None
    on_round: Callable[[Round], None] = lambda report: None
    share: Path | None = (
        None  # a folder where stage 1 is kept for other methods with the same settings and seed
    )
    alone: bool = True  # no other run shares the GPU, so that one run may fill it
    forbid_waiting: bool = False  # raise where a step makes the host wait for the GPU

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def precision(self) -> AbstractContextManager[object]:
        """The context in which a network runs in training."""
        return torch.autocast("cuda", torch.bfloat16) if self.cuda and self.half else nullcontext()


@dataclass
class Group:
    """Parameters that are trained at the same rate."""

    parameters: Sequence[nn.Parameter]
    lr: float | None = None  # None: the optimiser's


class _Turns:
    """Who may work on the GPU: one thread at a time, but for replaying graphs.

    While a thread captures a graph, others may do nothing but replay theirs: a new shape that makes cuDNN try out its kernels, or a
    generator that is derive_seed, spoils the capture. So a run beside others holds a turn in all that it does, and gives it up
    while it replays, which is nearly all of its time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        with self._lock:
            self._thread.has_turn = True
            try:
                yield
            finally:
                self._thread.has_turn = False

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others work meanwhile; nothing happens where no turn was taken."""
        if not getattr(self._thread, "has_turn", False):
            yield
            return
        self._thread.has_turn = False
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._thread.has_turn = True


_TURNS = _Turns()


@contextmanager
def beside_others(device: torch.device) -> Iterator[None]:
    """For a thread that shares a GPU with others: a stream of its own, and its turns. On a CPU nothing is needed."""
    if device.type != "cuda":
        yield
        return
    with _TURNS.taken(), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield


def letting_others_work() -> AbstractContextManager[None]:
    """For a run that waits for another one: its turn on the GPU is given up meanwhile."""
    return _TURNS.given_up()


def enable_cudnn_benchmark(device: torch.device) -> None:
    """Let cuDNN try its kernels on each new shape: before the first step, as it keeps to what it has chosen."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = KERNELS


Loss = Callable[[Tensor, Generator], Tensor]  # of a step's input


def train(
    stage: str,
    modules: dict[str, nn.Module],
    groups: Sequence[Group],
    loss_of: Loss | Mapping[int, Loss],
    draw: Callable[[Generator], Tensor],
    rounds: int,
    optimiser: SGDConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train: `draw` gives a round's inputs, one row a step; `loss_of` gives the loss of one row.

    Where the loss changes on the way, `loss_of` says from which round on each one counts. `modules` is all that may
    change, and what a checkpoint holds; `groups` is what the optimiser changes.
    """
    rehearsal.wait()  # it may be at work on the GPU, where a capture wants to be alone
    sgd = SGD(
        [g.parameters for g in groups],
        runtime.device,
        optimiser.momentum,
        optimiser.nesterov,
        optimiser.weight_decay,
    )
    done = _resume(stage, modules, sgd, runtime, seed, rounds)
    generator = torch.Generator(runtime.device)
    losses = loss_of if isinstance(loss_of, Mapping) else {0: loss_of}
    step: _Step | None = None
    for round_ in range(done, rounds):
        began = time.monotonic()
        for rate, group in zip(sgd.rates, groups, strict=True):
            rate.fill_((optimiser.lr if group.lr is None else group.lr) * optimiser.rate(round_))
        generator.manual_seed(derive_seed(seed, stage, round_, "draw"))
        inputs = draw(generator)
        if step is None or round_ in losses:
            loss = losses[max(begin for begin in losses if begin <= round_)]
            step = _Step(loss, inputs[0], modules, sgd, generator, runtime)
        generator.manual_seed(derive_seed(seed, stage, round_, "steps"))
        with _TURNS.given_up():
            with _no_waiting(runtime):
                for row in inputs:
                    step(row)
            mean_loss = step.mean_loss(len(inputs))
        if not math.isfinite(mean_loss):
            raise ConfigError(
                f"{stage}: the loss became {mean_loss} in round {round_ + 1}; lower the learning rate (now {optimiser.lr:g})"
            )
        # Told before it is saved: a kill in between tells a round twice, the other way round never.
        runtime.on_round(
            Round(
                stage,
                round_ + 1,
                rounds,
                mean_loss,
                optimiser.lr * optimiser.rate(round_),
                time.monotonic() - began,
            )
        )
        last = round_ + 1 == rounds
        if runtime.checkpoint is not None and (last or runtime.checkpoint.due()):
            runtime.checkpoint.save(
                stage, _state(modules, None if last else sgd, seed, round_ + 1, rounds)
            )


def train_epochs(
    stage: str,
    modules: dict[str, nn.Module],
    parameters: Sequence[nn.Parameter],
    loss_of: Loss,
    images: int,
    config: EpochsConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train on batches of a set of images; `loss_of` takes the batch's positions in the set."""
    train(
        stage,
        modules,
        [Group(parameters)],
        loss_of,
        lambda generator: shuffled(images, config.batch, generator),
        config.epochs,
        config,
        runtime,
        seed,
    )


def shuffled(images: int, batch: int, generator: Generator) -> Tensor:
    """The images in random order, a row a step; what does not fill the last row waits for another epoch."""
    batch = min(batch, images)
    order = torch.randperm(images, device=generator.device, generator=generator)
    return order[: images // batch * batch].view(-1, batch)


class _Step:
    """One step of training: eager on a CPU, a replayed CUDA graph on a GPU."""

    def __init__(
        self,
        loss_of: Loss,
        example: Tensor,
        modules: dict[str, nn.Module],
        sgd: SGD,
        generator: Generator,
        runtime: Runtime,
    ) -> None:
        self.loss_of, self.sgd, self.generator, self.runtime = loss_of, sgd, generator, runtime
        self.total = torch.zeros((), device=runtime.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.aside: SideStreams | None = None
        if runtime.cuda and runtime.graphs:
            # Runs side by side fill the GPU already, and would only be slowed down.
            self.aside = SideStreams(runtime.device) if runtime.alone else None
            self._capture(example, modules)

    def __call__(self, row: Tensor) -> None:
        if self.graph is None:
            self._run(row)
        else:
            self.input.copy_(row)
            self.graph.replay()

    def mean_loss(self, steps: int) -> float:
        """The mean loss since the last call; the one place where the host waits."""
        loss = float(self.total) / steps
        self.total.zero_()
        return loss

    def _run(self, row: Tensor) -> None:
        self.sgd.zero_grad()
        with self.runtime.precision(), gradients_on(self.aside):
            loss = self.loss_of(row, self.generator)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.aside is not None:
            self.aside.join()
        self.sgd.step()
        self.total.add_(loss.detach())

    def _capture(self, example: Tensor, modules: dict[str, nn.Module]) -> None:
        self.input = example.clone()
        changed = [*_tensors(modules).values(), *self.sgd.momenta.values(), self.total]
        before = [t.clone() for t in changed]
        side = torch.cuda.Stream(priority=FIRST)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._run(self.input)
        torch.cuda.current_stream().wait_stream(side)
        self.sgd.zero_grad()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # The default mode would forbid other threads to allocate memory meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            self._run(self.input)
        # Warming up has trained: everything is put back as it was.
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)
        self.graph = graph


def _tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": t
        for name, module in modules.items()
        for key, t in module.state_dict().items()
    }


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in tensors.items()}


def _state(
    modules: dict[str, nn.Module], sgd: SGD | None, seed: int, done: int, rounds: int
) -> State:
    """A copy of all that a stage needs to go on; the momenta only while it is under way."""
    momenta = (
        {}
        if sgd is None
        else {str(i): t.detach().cpu().clone() for i, t in enumerate(sgd.momenta.values())}
    )
    tensors = {name: t.detach().cpu().clone() for name, t in _tensors(modules).items()}
    return {"seed": seed, "done": done, "rounds": rounds, "tensors": tensors, "momenta": momenta}


def _resume(
    stage: str, modules: dict[str, nn.Module], sgd: SGD, runtime: Runtime, seed: int, rounds: int
) -> int:
    """Go back to where the checkpoint left the stage; returns the rounds already done."""
    state = None if runtime.checkpoint is None else runtime.checkpoint.load(stage)
    if state is None:
        return 0
    tensors = _tensors(modules)
    if (state["seed"], state["rounds"], _shapes(state["tensors"])) != (
        seed,
        rounds,
        _shapes(tensors),
    ):
        raise CheckpointError(
            f"the checkpoint of stage '{stage}' comes from another run (seed, rounds or network differ): start without --resume"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(state["tensors"][name])
        if state["momenta"]:
            for i, momentum in enumerate(sgd.momenta.values()):
                momentum.copy_(state["momenta"][str(i)])
    return int(state["done"])


@contextmanager
def _no_waiting(runtime: Runtime) -> Iterator[None]:
    if not (runtime.cuda and runtime.forbid_waiting):
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
