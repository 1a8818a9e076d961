"""Shapes of the variables of well-known models, for `tfdist bench optimizer`."""

from __future__ import annotations

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """Returns the shapes of ResNet-50 (He et al., 1512.03385) for 1,000 classes: 25.6 million parameters."""
    shapes: list[Shape] = []

    def convolution(size: int, channels: int, filters: int) -> None:
        # The kernel, then gamma and beta of the batch normalization after the convolution.
        shapes.extend([(size, size, channels, filters), (filters,), (filters,)])

    convolution(7, 3, 64)
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolution(1, channels, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            if block == 0:
                convolution(1, channels, 4 * width)
            channels = 4 * width
    return [*shapes, (channels, 1000), (1000,)]


def bert_base() -> list[Shape]:
    """Returns the shapes of BERT-base (Devlin et al., 1810.04805) without its heads: 108.9 million parameters."""
    hidden, inner = 768, 3072
    shapes: list[Shape] = [(30522, hidden), (512, hidden), (2, hidden), (hidden,), (hidden,)]
    for _ in range(12):
        shapes += [(hidden, hidden), (hidden,)] * 4
        shapes += [(hidden,), (hidden,)]
        shapes += [(hidden, inner), (inner,), (inner, hidden), (hidden,)]
        shapes += [(hidden,), (hidden,)]
    return shapes


def small() -> list[Shape]:
    """Returns 1,000 shapes of 64 parameters each, for which a step mostly takes the time to start operations."""
    return [(8, 8)] * 1000


MODELS = {"resnet50": resnet50, "bert_base": bert_base, "small": small}
