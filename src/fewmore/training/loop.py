"""Run the one training loop: rounds of steps, learning rates, checkpoints, resuming.

A stage is rounds (epochs, or numbers of episodes), a round is steps, and a step's input is one row
of indices that was sampled for the whole round. All randomness of a round comes from (seed, stage,
round), so a run that resumes at a round repeats it exactly. The host never waits for a step, only
for a round: on a GPU, steps may be queued far ahead.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Generator, Tensor, nn

from fewmore.errors import CheckpointError, ConfigError, MethodError
from fewmore.random import derive_seed
from fewmore.training.average import WeightAverage
from fewmore.training.checkpoint import State
from fewmore.training.distributed import ManyProcesses, OneProcess, split_batches
from fewmore.training.fast_path import Engine, Step, accelerate, yield_gpu
from fewmore.training.optimizer import (
    EpochsConfig,
    OptimizerConfig,
    ParameterGroup,
    build_optimizer,
    optimizer_tensors,
    set_learning_rates,
)
from fewmore.training.runtime import Round, Runtime
from fewmore.training.waiting import check_steps

Loss = Callable[[Tensor, Generator], Tensor]  # of a step's input


def train(
    stage: str,
    modules: dict[str, nn.Module],
    groups: Sequence[ParameterGroup],
    loss_of: Loss | Mapping[int, Loss],
    sample: Callable[[Generator], Tensor],
    rounds: int,
    config: OptimizerConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train modules: `sample` gives a round's inputs, a row for each step; `loss_of` its loss.

    Where the loss changes on the way, `loss_of` maps the round from which each one counts to that
    loss. `modules` is all that may change, and what a checkpoint holds; `groups` is what the
    optimizer changes.
    """
    config.check_rounds(rounds)
    generator = torch.Generator(runtime.device)
    losses = loss_of if isinstance(loss_of, Mapping) else {0: loss_of}
    step: Step | None = None
    with (
        accelerate(modules, runtime) as engine,
        split_batches(modules, runtime.batch_norm) as processes,
    ):
        training = _Training(modules, groups, config, runtime, engine, processes)
        done = _resume(stage, training, runtime, seed, rounds)
        for round_ in range(done, rounds):
            began = time.monotonic()
            set_learning_rates(training.optimizer, groups, config, round_, rounds)
            generator.manual_seed(derive_seed(seed, stage, round_, "draw"))
            inputs = sample(generator)
            if step is None or round_ in losses:
                loss = losses[max(first for first in losses if first <= round_)]
                step = training.build_step(stage, loss, inputs[0], generator)
            generator.manual_seed(derive_seed(seed, stage, round_, "steps"))
            mean_loss = _run_steps(step, inputs, training.total_loss, runtime)
            if not math.isfinite(mean_loss):
                raise ConfigError(
                    f"{stage}: the loss became {mean_loss} in round {round_ + 1}; "
                    f"lower the learning rate (now {config.lr:g})"
                )
            lr = config.lr * config.lr_factor(round_, rounds)
            seconds = time.monotonic() - began
            # Reported before it is saved: after a kill in between, a round is reported twice, never
            # not at all.
            runtime.on_round(Round(stage, round_ + 1, rounds, mean_loss, lr, seconds))
            last = round_ + 1 == rounds
            if last and training.average is not None:
                training.average.finish()
            if runtime.checkpoint is not None and (last or runtime.checkpoint.due()):
                saved = {"seed": seed, "done": round_ + 1, "rounds": rounds}
                runtime.checkpoint.save(stage, {**saved, **training.state(finished=last)})


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
    """Train on shuffled batches of images; `loss_of` takes a batch's positions in the set."""
    train(
        stage,
        modules,
        [ParameterGroup(parameters)],
        loss_of,
        partial(shuffled_batches, images, config.batch, fill=config.last_batch == "fill"),
        config.epochs,
        config,
        runtime,
        seed,
    )


def shuffled_batches(images: int, batch: int, generator: Generator, fill: bool = False) -> Tensor:
    """Sample the positions of an epoch, (steps, batch).

    An incomplete last batch is left out, or filled with images of the epoch's beginning: a step
    that is captured takes batches of one size.
    """
    batch = min(batch, images)
    order = torch.randperm(images, device=generator.device, generator=generator)
    if fill:
        order = torch.cat([order, order[: -images % batch]])
    return order[: len(order) // batch * batch].view(-1, batch)


def steps_of_epoch(images: int, config: EpochsConfig) -> int:
    """Return how many batches `shuffled_batches` makes of the images."""
    batch = min(config.batch, images)
    return -(-images // batch) if config.last_batch == "fill" else images // batch


class _Training:
    """Hold all that a step changes, which is also what a checkpoint keeps."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        groups: Sequence[ParameterGroup],
        config: OptimizerConfig,
        runtime: Runtime,
        engine: Engine,
        processes: OneProcess | ManyProcesses,
    ) -> None:
        self.runtime = runtime
        self.engine = engine
        self.processes = processes
        self.tensors = _tensors(modules)
        # Gradient scaling works with torch.optim's own classes only.
        scaled = runtime.used_precision == "fp16"
        sgd_class = torch.optim.SGD if scaled else engine.optimizer_class
        self.optimizer = build_optimizer(groups, config, runtime.device, sgd_class)
        self.scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        self.average = (
            WeightAverage(self.tensors, config.ema, runtime.device) if config.ema else None
        )
        self.total_loss = torch.zeros((), device=runtime.device)  # of the round's steps

    def build_step(self, stage: str, loss_of: Loss, example: Tensor, generator: Generator) -> Step:
        """Build a step of training as plain PyTorch, and let the engine make it faster."""
        loss_of = self.processes.wrap(loss_of)

        def step(row: Tensor) -> None:
            self.optimizer.zero_grad()
            with self.runtime.autocast(), self.engine.forward():
                loss = loss_of(row, generator)
                require_single(loss, f"the loss of {stage}")
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.engine.finish_backward()
            self.processes.finish_backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.average is not None:
                self.average.update()
            self.total_loss.add_(loss.detach())

        changed = [tensor for part in self.parts().values() for tensor in part.values()]
        scale = self.scaler.state_dict()
        captured = self.engine.capture(step, example, [*changed, self.total_loss], generator)
        self.scaler.load_state_dict(scale)
        return (
            captured if self.runtime.cuda or not self.runtime.forbid_sync else check_steps(captured)
        )

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors that a step changes, but for the sum of the losses."""
        return {
            "tensors": self.tensors,
            "optimizer": optimizer_tensors(self.optimizer),
            "average": {} if self.average is None else self.average.tensors(),
        }

    def state(self, finished: bool) -> State:
        """Copy what training needs to go on; once it is finished, the modules' tensors alone."""
        copies = {
            part: {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            for part, tensors in self.parts().items()
        }
        if finished:
            return {"tensors": copies["tensors"], "optimizer": {}, "average": {}, "scaler": {}}
        return {**copies, "scaler": self.scaler.state_dict()}

    def fits(self, state: State, finished: bool) -> bool:
        """Say whether a state is of a training like this one."""
        return all(
            _shapes(state.get(part, {})) == _shapes(tensors)
            for part, tensors in self.parts().items()
            if part == "tensors" or not finished
        )

    def restore(self, state: State) -> None:
        """Continue from a state that fits."""
        with torch.no_grad():
            for part, tensors in self.parts().items():
                for name, value in state.get(part, {}).items():
                    tensors[name].copy_(value)
        if state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])


def _run_steps(step: Step, inputs: Tensor, total_loss: Tensor, runtime: Runtime) -> float:
    """Take the steps of a round and return their mean loss; the one place where the host waits."""
    with yield_gpu():
        with _sync_forbidden(runtime):
            for row in inputs:
                step(row)
        mean_loss = float(total_loss) / len(inputs)
    total_loss.zero_()
    return mean_loss


def require_single(loss: Tensor, name: str) -> None:
    """Refuse a loss that is not a single number of a tensor; `name` is what messages call it."""
    shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    if not isinstance(loss, Tensor) or loss.dim():
        raise MethodError(
            f"{name} is {shape}, and must be a tensor of a single number: return its mean()"
        )


def _tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return all parameters and buffers by name."""
    return {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def _resume(stage: str, training: _Training, runtime: Runtime, seed: int, rounds: int) -> int:
    """Restore the stage from the checkpoint, and return the rounds already done."""
    state = None if runtime.checkpoint is None else runtime.checkpoint.load(stage)
    if state is None:
        return 0
    done = int(state["done"])
    if (state["seed"], state["rounds"]) != (seed, rounds) or not training.fits(
        state, finished=done == rounds
    ):
        raise CheckpointError(
            f"the checkpoint of stage '{stage}' comes from another run (seed, rounds, network or "
            "optimizer differ): start without --resume"
        )
    training.restore(state)
    return done


@contextmanager
def _sync_forbidden(runtime: Runtime) -> Iterator[None]:
    """Raise where the host waits for the GPU, if the runtime asks for it."""
    if not (runtime.cuda and runtime.forbid_sync):
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
