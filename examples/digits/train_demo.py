"""Train the larger digits CNN that the demo quantizes, and write it as ONNX.

    python examples/digits/train_demo.py

Needs numpy, scikit-learn and onnx. Writes `digits_demo.onnx` beside this file: `image`
[batch, 1, 32, 32] in [0, 1] -> `logits` [batch, 10]. The images are those of `train.py`, enlarged
to 32x32, with the same split: the calibration and test images stay unseen.

The network of `train.py` takes microseconds, most of them overhead of the runtime. This one has the
shape of an image classifier: most of its time goes to convolutions of 32 to 128 channels. Like
`train.py`, it trains in plain numpy, on one thread, from a fixed seed; it takes about five minutes.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from enlarge import SIZE, enlarged
from threadpoolctl import threadpool_limits  # comes with scikit-learn
from train import (
    Conv,
    Flatten,
    Gemm,
    Layer,
    MaxPool,
    Relu,
    Split,
    accuracy,
    load_splits,
    to_onnx,
    train,
)

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits_demo.onnx"
SEED = 20240301
EPOCHS, LEARNING_RATE = 14, 1.5e-3


def network(rng: np.random.Generator) -> list[Layer]:
    """About 435 000 parameters and 59 million multiplications for each image."""
    layers: list[Layer] = []
    inputs = 1
    for first, second in ((32, 64), (64, 96), (128, 128)):
        layers += [Conv(inputs, first, rng), Relu(), Conv(first, second, rng), Relu(), MaxPool()]
        inputs = second
    return [*layers, Flatten(), Gemm(128 * 4 * 4, 32, rng), Relu(), Gemm(32, 10, rng)]


def main() -> None:
    started = time.monotonic()
    rng = np.random.default_rng(SEED)
    splits = load_splits()
    training, calibration, test = (Split(enlarged(s.images), s.labels) for s in splits)
    layers = network(rng)
    with threadpool_limits(1):  # the number of threads decides the order of additions
        train(layers, training, rng, epochs=EPOCHS, learning_rate=LEARNING_RATE, shift=SIZE // 8)
    model = to_onnx(layers, name="digits_demo", size=SIZE)
    MODEL.write_bytes(model.SerializeToString(deterministic=True))
    for name, split in (("calibration", calibration), ("test", test)):
        print(f"{name} accuracy {accuracy(model, split):.2%}")
    print(f"{MODEL.stat().st_size} bytes, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
