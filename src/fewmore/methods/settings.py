"""What some methods alone read of a recipe. Values are the methods' own papers' where these give any for such a setting."""

from dataclasses import dataclass

from fewmore.errors import ConfigError


@dataclass(frozen=True)
class ExemplarConfig:
    """The images of old classes that a method keeps."""

    per_class: int = (
        20  # iCaRL's 2,000 over 100 classes; of a new class with fewer images all are kept
    )

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise ConfigError(f"exemplars: per_class must be at least 1, not {self.per_class}")


@dataclass(frozen=True)
class DistillationConfig:
    """How strongly the old network's answers are held on to."""

    weight: float = 1.0  # iCaRL and EEIL add the losses as they are
    temperature: float = 2.0  # EEIL's

    def __post_init__(self) -> None:
        if self.weight < 0 or self.temperature <= 0:
            raise ConfigError(
                f"distillation: weight must not be negative and temperature must be positive, not {self}"
            )


@dataclass(frozen=True)
class LucirConfig:
    """LUCIR's losses: the paper's values for CIFAR100."""

    less_forget: float = 5.0  # λ_base
    ranking: float = 1.0
    margin: float = 0.5
    negatives: int = 2  # K

    def __post_init__(self) -> None:
        if min(self.less_forget, self.ranking, self.margin) < 0 or self.negatives < 1:
            raise ConfigError(
                f"lucir: weights and margin must not be negative and negatives must be at least 1, not {self}"
            )


@dataclass(frozen=True)
class TopicConfig:
    """TOPIC's neural gas and losses. The losses here are means, so that the paper's weights of sums do not carry over."""

    nodes: int = 400  # the paper's supplement, for all its data sets
    rounds: int = 20  # of the gas in its batch form
    anchor: float = 0.5
    min_max: float = 0.005
    rehearse: bool = True  # whether cross-entropy is over the nodes' images too, which are kept anyway; the paper speaks of the new ones

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds) < 1 or min(self.anchor, self.min_max) < 0:
            raise ConfigError(
                f"topic: nodes and rounds must be at least 1 and weights must not be negative, not {self}"
            )


@dataclass(frozen=True)
class DeepEMDConfig:
    """How DeepEMD compares feature maps."""

    side: int = 8  # of the grid that a larger map is averaged down to; the whole map in all of the paper's settings
    centred: bool = True  # cells lose the mean of their channels before they are compared: the program does it, the text does not

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ConfigError(f"deepemd: side must be at least 1, not {self.side}")
