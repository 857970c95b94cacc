"""The networks of the workloads, made here with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.papers.common.modules import load
from runlist.errors import NotSupportedError

WORDS = 30_522
_SETTLING = 4, 96
"""Images, and their pixels, by which layers that normalise learn what comes to them."""


@dataclass(frozen=True)
class Network:
    """`build` makes one of its usual size. `size` is the pixels of an image's side, or how many words; `least` what is
    enough where there is no GPU.
    """

    build: Callable[[], Any]
    size: int
    least: int
    modules: tuple[str, ...]
    words: bool = False

    def given(self, torch: Any, size: int, generator: Any) -> Any:
        """One input, by chance: (1, 3, size, size), or (1, size) numbers of words."""
        if self.words:
            return torch.randint(0, WORDS, (1, size), generator=generator)
        return torch.rand((1, 3, size, size), generator=generator)

    def made(self, torch: Any, seed: int) -> Any:
        """One on the host, in single precision, for inference. Raises NotSupportedError where a module is missing."""
        for name in self.modules:
            load(name)
        torch.manual_seed(seed)
        try:
            network = self.build()
        except ImportError as error:  # of what those modules need themselves
            raise NotSupportedError(f"{self.modules[0]} lacks something: {str(error).splitlines()[0]}") from error
        if not self.words:
            _settle(torch, network)
        return network.eval().requires_grad_(False)


def _image(name: str, size: int, least: int) -> Network:
    def build() -> Any:
        return load("timm").create_model(name, pretrained=False)

    return Network(build, size, least, ("timm",))


def _distilbert() -> Any:
    transformers = load("transformers")

    class Hidden(load("torch").nn.Module):  # type: ignore[misc]
        """What the last layer says of each word, without what wraps it."""

        def __init__(self) -> None:
            super().__init__()
            self.body = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=WORDS))

        def forward(self, words: Any) -> Any:
            return self.body(input_ids=words).last_hidden_state

    return Hidden()


def _settle(torch: Any, network: Any) -> None:
    """Layers that normalise by what they have seen have seen nothing yet, and so would let the numbers grow from layer
    to layer, in half precision beyond what that has.
    """
    normal = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    if not normal:
        return
    kept = [each.momentum for each in normal]
    for each in normal:
        each.momentum = None  # the mean of all that was seen
    images, side = _SETTLING
    with torch.no_grad():
        network.train()(torch.rand(images, 3, side, side))
    for each, momentum in zip(normal, kept, strict=True):
        each.momentum = momentum


NETWORKS: Mapping[str, Network] = {
    "vgg19": _image("vgg19", 224, 32),
    "resnet152": _image("resnet152", 224, 32),
    "densenet201": _image("densenet201", 224, 32),
    "inception_v3": _image("inception_v3", 299, 75),
    "distilbert": Network(_distilbert, 128, 16, ("transformers",), words=True),
}
