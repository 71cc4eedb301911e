"""Train the digits CNN that examples and tests quantize, and write it as ONNX.

    python examples/digits/train.py

Needs numpy, scikit-learn and onnx. Writes beside this file:

    digits_cnn.onnx   the float model: `image` [batch, 1, 8, 8] in [0, 1] -> `logits` [batch, 10]
    calibration.npy   200 images for calibration, seen neither in training nor in the test
    test.npz          397 images and their labels, to measure accuracy

and copies them into the Python package, where `quantize_rs.examples.digits()` finds them.

The network is trained in plain numpy, on one thread, from fixed seeds: the same machine writes the
same bytes again. Another BLAS adds floats in another order and may change their last bits.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits  # comes with scikit-learn

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "python" / "quantize_rs" / "examples" / "data"
SEED = 20240229
TEST, CALIBRATION = 397, 200
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 60, 50, 2e-3, 5e-2


# --- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Images, float32 [n, 1, 8, 8] in [0, 1], and their labels, int64 [n]."""

    images: np.ndarray
    labels: np.ndarray


def load_splits() -> tuple[Split, Split, Split]:
    """Training, calibration and test images; each holds the ten digits in equal proportion."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    rest, test, rest_labels, test_labels = train_test_split(
        images, labels, test_size=TEST, stratify=labels, random_state=SEED
    )
    train, calibration, train_labels, calibration_labels = train_test_split(
        rest, rest_labels, test_size=CALIBRATION, stratify=rest_labels, random_state=SEED
    )
    return (
        Split(train, train_labels),
        Split(calibration, calibration_labels),
        Split(test, test_labels),
    )


def shifted(images: np.ndarray, rng: np.random.Generator, by: int) -> np.ndarray:
    """Each image in place or moved up, down, left or right by some pixels, over background."""
    padded = np.pad(images, ((0, 0), (0, 0), (by, by), (by, by)))
    windows = sliding_window_view(padded, images.shape[2:], axis=(2, 3))
    corners = by * np.array([[1, 1], [0, 1], [2, 1], [1, 0], [1, 2]])
    y, x = corners[rng.integers(0, len(corners), len(images))].T
    return windows[np.arange(len(images)), :, y, x]


def batches(split: Split, rng: np.random.Generator, shift: int) -> Iterator[Split]:
    """One epoch: every image once, in random order, some moved by `shift` pixels."""
    order = rng.permutation(len(split.images))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield Split(shifted(split.images[chosen], rng, shift), split.labels[chosen])


# --- layers: activations are [n, h, w, channels] inside, [n, features] after Flatten ------------


class Layer:
    """A step of the network: `forward` keeps what `backward` needs."""

    def parameters(self) -> list[np.ndarray]:
        """The arrays that training changes in place."""
        return []

    def gradients(self) -> list[np.ndarray]:
        """The gradient of each parameter, after `backward`."""
        return []

    def forward(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def backward(self, grad: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def columns(x: np.ndarray) -> np.ndarray:
    """im2col of a 3x3 window with padding 1: one row of channels * 9 values for each pixel."""
    n, h, w, channels = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sliding_window_view(padded, (3, 3), axis=(1, 2)).reshape(n * h * w, channels * 9)


class Conv(Layer):
    """3x3 convolution, padding 1; the weight is laid out as ONNX wants it."""

    def __init__(self, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        deviation = np.sqrt(2 / (inputs * 9))
        self.weight = rng.normal(0, deviation, (outputs, inputs, 3, 3)).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)

    def parameters(self) -> list[np.ndarray]:
        return [self.weight, self.bias]

    def gradients(self) -> list[np.ndarray]:
        return [self.weight_grad, self.bias_grad]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.columns = columns(x)
        outputs = len(self.weight)
        y = self.columns @ self.weight.reshape(outputs, -1).T + self.bias
        return y.reshape(*x.shape[:3], outputs)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        outputs, inputs = self.weight.shape[:2]
        flat = grad.reshape(-1, outputs)
        self.weight_grad = (flat.T @ self.columns).reshape(self.weight.shape)
        self.bias_grad = flat.sum(0)
        # The gradient of a convolution is a convolution with the kernel turned around.
        turned = self.weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(inputs, -1)
        return (columns(grad) @ turned.T).reshape(*grad.shape[:3], inputs)


class Gemm(Layer):
    """Fully connected: `x @ weight.T + bias`, that is `transB = 1`."""

    def __init__(self, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        deviation = np.sqrt(2 / inputs)
        self.weight = rng.normal(0, deviation, (outputs, inputs)).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)

    def parameters(self) -> list[np.ndarray]:
        return [self.weight, self.bias]

    def gradients(self) -> list[np.ndarray]:
        return [self.weight_grad, self.bias_grad]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.weight_grad = grad.T @ self.x
        self.bias_grad = grad.sum(0)
        return grad @ self.weight


class Relu(Layer):
    def forward(self, x: np.ndarray) -> np.ndarray:
        self.positive = x > 0
        return x * self.positive

    def backward(self, grad: np.ndarray) -> np.ndarray:
        return grad * self.positive


class MaxPool(Layer):
    """2x2, stride 2; equal maxima share the gradient."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        n, h, w, channels = x.shape
        blocks = x.reshape(n, h // 2, 2, w // 2, 2, channels)
        largest = blocks.max((2, 4), keepdims=True)
        self.share = (blocks == largest).astype(np.float32)
        self.share /= self.share.sum((2, 4), keepdims=True)
        return largest[:, :, 0, :, 0]

    def backward(self, grad: np.ndarray) -> np.ndarray:
        blocks = self.share * grad[:, :, None, :, None]
        n, h, _, w, _, channels = blocks.shape
        return blocks.reshape(n, h * 2, w * 2, channels)


class Flatten(Layer):
    """To [n, channels * h * w], in the order ONNX flattens [n, channels, h, w]."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.transpose(0, 3, 1, 2).shape
        return x.transpose(0, 3, 1, 2).reshape(len(x), -1)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        return grad.reshape(self.shape).transpose(0, 2, 3, 1)


def network(rng: np.random.Generator) -> list[Layer]:
    """About 56 000 parameters."""
    return [
        Conv(1, 16, rng),
        Relu(),
        Conv(16, 32, rng),
        Relu(),
        MaxPool(),
        Conv(32, 64, rng),
        Relu(),
        Flatten(),
        Gemm(64 * 4 * 4, 32, rng),
        Relu(),
        Gemm(32, 10, rng),
    ]


# --- training -----------------------------------------------------------------------------------


def logits(layers: list[Layer], images: np.ndarray) -> np.ndarray:
    x = images.transpose(0, 2, 3, 1)
    for layer in layers:
        x = layer.forward(x)
    return x


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss and its gradient with respect to the scores."""
    rows = np.arange(len(labels))
    shifted_scores = scores - scores.max(1, keepdims=True)
    log_probabilities = shifted_scores - np.log(np.exp(shifted_scores).sum(1, keepdims=True))
    grad = np.exp(log_probabilities)
    grad[rows, labels] -= 1
    return -float(log_probabilities[rows, labels].mean()), grad / len(labels)


class Adam:
    """Adam with decoupled weight decay."""

    def __init__(self, parameters: list[np.ndarray]) -> None:
        self.parameters = parameters
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]
        self.steps = 0

    def step(self, gradients: list[np.ndarray], rate: float) -> None:
        self.steps += 1
        unbias_first, unbias_second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m += np.float32(0.1) * (g - m)
            v += np.float32(0.001) * (g * g - v)
            update = (m / unbias_first) / (np.sqrt(v / unbias_second) + 1e-8)
            p -= np.float32(rate) * (update + np.float32(WEIGHT_DECAY) * p)


def train(
    layers: list[Layer],
    split: Split,
    rng: np.random.Generator,
    *,
    epochs: int = EPOCHS,
    learning_rate: float = LEARNING_RATE,
    shift: int = 1,
) -> None:
    """Changes the parameters of `layers`; the learning rate falls along half a cosine."""
    adam = Adam([p for layer in layers for p in layer.parameters()])
    for epoch in range(epochs):
        rate = learning_rate * (1 + np.cos(np.pi * epoch / epochs)) / 2
        losses = []
        for batch in batches(split, rng, shift):
            loss, grad = cross_entropy(logits(layers, batch.images), batch.labels)
            for layer in reversed(layers):
                grad = layer.backward(grad)
            adam.step([g for layer in layers for g in layer.gradients()], rate)
            losses.append(loss)
        print(f"epoch {epoch + 1:2}/{epochs}  loss {np.mean(losses):.4f}")


# --- ONNX ---------------------------------------------------------------------------------------


def to_onnx(layers: list[Layer], *, name: str = "digits_cnn", size: int = 8) -> onnx.ModelProto:
    """The network as a model of opset 17; layers are named by kind and number: `conv1`, `fc2`."""
    kinds = {Conv: "conv", Gemm: "fc", Relu: "relu", MaxPool: "pool", Flatten: "flatten"}
    attributes: dict[type[Layer], dict[str, Any]] = {
        Conv: {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        Gemm: {"transB": 1},
        MaxPool: {"kernel_shape": [2, 2], "strides": [2, 2]},
        Flatten: {"axis": 1},
    }
    counts = dict.fromkeys(kinds.values(), 0)
    nodes, initializers, value = [], [], "image"
    for layer in layers:
        kind = kinds[type(layer)]
        counts[kind] += 1
        node = f"{kind}{counts[kind]}"
        inputs = [value]
        for role, array in zip(("weight", "bias"), layer.parameters(), strict=False):
            initializers.append(numpy_helper.from_array(array, f"{node}.{role}"))
            inputs.append(f"{node}.{role}")
        value = "logits" if layer is layers[-1] else f"{node}_out"
        nodes.append(
            helper.make_node(
                type(layer).__name__, inputs, [value], node, **attributes.get(type(layer), {})
            )
        )
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        initializers,
    )
    model = helper.make_model(
        graph,
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="quantize_rs examples/digits",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def accuracy(model: onnx.ModelProto, split: Split) -> float:
    """The share of images that the written model, run by ONNX's own reference, gets right."""
    (scores,) = ReferenceEvaluator(model).run(None, {"image": split.images})
    return float((np.asarray(scores).argmax(1) == split.labels).mean())


def main() -> None:
    started = time.monotonic()
    rng = np.random.default_rng(SEED)
    training, calibration, test = load_splits()
    layers = network(rng)
    with threadpool_limits(1):  # the number of threads decides the order of additions
        train(layers, training, rng)
    model = to_onnx(layers)
    (HERE / "digits_cnn.onnx").write_bytes(model.SerializeToString(deterministic=True))
    np.save(HERE / "calibration.npy", calibration.images)
    np.savez_compressed(HERE / "test.npz", images=test.images, labels=test.labels)
    for name in ("digits_cnn.onnx", "calibration.npy", "test.npz"):
        shutil.copyfile(HERE / name, PACKAGE / name)
    print(f"test accuracy {accuracy(model, test):.2%}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
