"""Observers, fake quantization, learned scales: against what was worked out by hand, and numpy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, TypeAlias

import numpy as np
import pytest

import quantize_rs
from quantize_rs import errors, kernels, observers, training
from quantize_rs.training import QuantizationAwareTraining, QuantizationConfig

Array: TypeAlias = Any  # numpy's, of any type and shape

F = np.float32


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def test_torch_is_not_imported() -> None:
    code = "import sys, quantize_rs; assert 'torch' not in sys.modules and quantize_rs.training"
    subprocess.run([sys.executable, "-c", code], check=True)


# What PyTorch's definitions give, worked out by hand for batches [-1, 2] and [0, 4].
BATCHES = ([-1.0, 2.0], [0.0, 4.0])
BY_HAND: list[tuple[observers.Observer, float, int]] = [
    # min -1, max 4: 5 / 255; 0 - round(-51) = 51
    (observers.MinMaxObserver(), 5 / 255, 51),
    (observers.MinMaxObserver("quint8", "per_tensor_affine"), 5 / 255, 51),
    # -128 - round(-51) = -77
    (observers.MinMaxObserver("qint8"), 5 / 255, -77),
    # max(1, 4) / ((127 + 128) / 2)
    (observers.MinMaxObserver("int8", "symmetric"), 4 / 127.5, 0),
    (observers.MinMaxObserver("uint8", "symmetric"), 4 / 127.5, 128),
    # 7 bits: 5 / 127; round(1 / (5 / 127)) = round(25.4)
    (observers.MinMaxObserver(reduce_range=True), 5 / 127, 25),
    # 4 bits of one's own: 5 / 15; round(1 / (1 / 3)) = 3
    (observers.MinMaxObserver(quant_min=0, quant_max=15), 5 / 15, 3),
    # min -1 + 0.01 * (0 + 1) = -0.99, max 2 + 0.01 * (4 - 2) = 2.02: 3.01 / 255; round(83.87)
    (observers.MovingAverageMinMaxObserver(), 3.01 / 255, 84),
    # min -0.5, max 3: 3.5 / 255; round(36.43)
    (observers.MovingAverageMinMaxObserver(0.5), 3.5 / 255, 36),
]


@pytest.mark.parametrize(("observer", "scale", "zero_point"), BY_HAND)
def test_observers_give_what_was_worked_out_by_hand(
    observer: observers.Observer, scale: float, zero_point: int
) -> None:
    for batch in BATCHES:
        assert observer(batch) is batch
    found = observer.calculate_qparams()
    assert found[0] == pytest.approx(scale, rel=1e-6)
    assert found[1] == zero_point
    observer.reset_min_max_vals()
    with pytest.raises(errors.CalibrationError, match="observed nothing"):
        observer.calculate_qparams()


def test_channels_have_ranges_of_their_own() -> None:
    observer = observers.PerChannelMinMaxObserver(ch_axis=-1, dtype="int8", qscheme="symmetric")
    observer.observe([[1.0, -2.0], [0.5, 4.0]])
    observer.observe([[-3.0, 0.0]])
    scale, zero_point = observer.calculate_qparams()
    # absmax 3 and 4
    np.testing.assert_allclose(scale, [3 / 127.5, 4 / 127.5], rtol=1e-6)
    assert np.array_equal(zero_point, [0, 0])
    average = observers.MovingAveragePerChannelMinMaxObserver(0.5, 0)
    average.observe([[0.0, 1.0], [0.0, 2.0]])
    average.observe([[0.0, 3.0], [0.0, 2.0]])
    assert np.array_equal(average.max_val, [2.0, 2.0])
    with pytest.raises(errors.OptionError, match="3 channels, expected 2"):
        average.observe(np.zeros((3, 2)))


def test_ten_batches_with_one_maximum_have_it_as_average() -> None:
    observer = observers.MovingAverageMinMaxObserver()
    for _ in range(10):
        observer.observe([0.0, 3.0])
    assert observer.max_val == 3.0


def test_a_histogram_leaves_out_what_is_not_worth_its_place() -> None:
    x = numbers((100_000,))
    far = np.append(x, F(60.0))
    histogram, whole = observers.HistogramObserver(), observers.MinMaxObserver()
    for batch in np.array_split(far, 7):
        histogram.observe(batch)
        whole.observe(batch)
    losses = []
    for observer in (histogram, whole):
        scale, zero_point = observer.calculate_qparams()
        y = training.fake_quantize(far, scale, zero_point, 0, 255)
        losses.append(float(np.mean((y - far)[:-1] ** 2)))
    assert losses[0] < losses[1] / 4
    assert histogram.max_val < 10 < whole.max_val


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("minmax", {}),
        ("moving_average", {}),
        ("percentile", {}),
        ("percentile:99.9", {"percentile": 99.9}),
        ("entropy", {}),
        ("mse", {}),
        ("mse:50", {"weight": 50}),
    ],
)
def test_a_method_means_for_an_observer_what_it_means_for_calibration(
    method: str, option: dict[str, float]
) -> None:
    digits = quantize_rs.examples.digits()
    images = np.load(digits.calibration)[:40] * numbers((40, 1, 1, 1))
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    found = plan.calibrate(images, method=method, engine="tract").values["image"]
    name = method.partition(":")[0]
    for observer in (observers.observer(method), observers.observer(name, **option)):
        for image in images:
            observer.observe(image)
        assert (observer.min_val, observer.max_val) == pytest.approx(found)


@pytest.mark.parametrize("name", sorted(observers._ALL))
def test_every_observer_is_found_by_name_and_takes_any_float(name: str) -> None:
    observer = observers.observer(name, dtype="int8")
    assert np.all(np.asarray(observer.min_val) == np.inf)
    observer.observe(np.zeros((0, 3)))
    observer.observe(numbers((4, 50)).astype(np.float64))
    low, high = np.asarray(observer.min_val), np.asarray(observer.max_val)
    assert np.all(low < 0)
    assert np.all(high > 0)
    assert name == "minmax" or type(observer).__name__ in repr(observer)
    before = observer.calculate_qparams()
    with pytest.raises(errors.OptionError, match="element 3 is NaN"):
        observer.observe(np.array([[1, 2, 3, np.nan]] * 4, F))
    assert str(observer.calculate_qparams()) == str(before)


@pytest.mark.parametrize(
    ("make", "option", "said"),
    [
        (lambda: observers.MinMaxObserver("int5"), "dtype", "int5"),
        (lambda: observers.MinMaxObserver("float8"), "dtype", "float8"),
        (lambda: observers.MinMaxObserver(qscheme="odd"), "qscheme", "odd"),
        (lambda: observers.MinMaxObserver(qscheme="per_channel_affine"), "qscheme", "one range"),
        (lambda: observers.MinMaxObserver(quant_min=1, quant_max=9), "quant_min", "1"),
        (lambda: observers.MinMaxObserver(quant_min=0), "quant_max", "None"),
        (lambda: observers.MinMaxObserver(eps=0.0), "eps", "0"),
        (lambda: observers.MovingAverageMinMaxObserver(1.5), "averaging_constant", "1.5"),
        (lambda: observers.HistogramObserver(1), "bins", "1"),
        (lambda: observers.observer("median"), "observer", "median"),
        (lambda: observers.observer("minmax:2"), "observer", "minmax:2"),
        (lambda: observers.observer("percentile:most"), "observer", "number after the colon"),
        (lambda: observers.observer("percentile:10"), "percentile", "10"),
        (lambda: observers.observer("mse:0.5"), "weight", "0.5"),
        (lambda: observers.observer("mse:2", weight=3), "weight", "mse:2"),
        (lambda: observers.MseObserver(float("nan")), "weight", "nan"),
        (lambda: QuantizationConfig("int5"), "dtype", "int5"),
        (lambda: QuantizationConfig(averaging_constant=0.0), "averaging_constant", "0.0"),
        (lambda: QuantizationConfig(group_size=0, axis=0), "group_size", "0"),
        (lambda: QuantizationConfig(group_size=8), "axis", "None"),
        (lambda: training.StochasticQuantize(bit_width=1), "bit_width", "1"),
        (lambda: training.StochasticQuantize(temperature=-1.0), "temperature", "-1"),
        (lambda: training.LearnableFakeQuantize(scale_lr=float("nan")), "scale_lr", "nan"),
        (lambda: training.fake_quantize([1.0], 1.0, quant_min=5, quant_max=4), "quant_min", "5"),
        (lambda: training.fake_quantize([1.0], 1.0, 99, quant_max=7), "zero_point", "99"),
        (lambda: training.learn_scale([float("inf")], 1.0), "x", "inf"),
        (lambda: training.learn_scale([1.0], 0.0), "scale", "0"),
        (lambda: training.learn_scale([1.0], float("nan")), "scale", "NaN"),
        (lambda: training.FakeQuantize(observers.MinMaxObserver()), "observer", "255"),
    ],
)
def test_what_cannot_be_is_refused_with_field_and_value(make: Any, option: str, said: str) -> None:
    with pytest.raises(errors.OptionError) as refused:
        make()
    assert refused.value.option == option
    assert said in str(refused.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int2", "uint16"])
@pytest.mark.parametrize(("axis", "block_size"), [(None, None), (1, None), (0, None), (1, 16)])
def test_fake_quantization_is_dequantize_of_quantize(
    dtype: str, axis: int | None, block_size: int | None
) -> None:
    x = numbers((6, 40)) * 3
    shape: tuple[int, ...] = () if axis is None else (x.shape[axis],)
    shape = (6, 3) if block_size else shape
    scale = np.abs(numbers(shape, 1)) * 0.1 + F(0.01)
    info = kernels.quantize_linear([-1e9, 1e9], 1.0, dtype=dtype)
    low, high = int(info[0]), int(info[1])
    zero_point = np.full(shape, (low + high) // 2)
    y, mask = training.fake_quantize(
        x, scale, zero_point, low, high, axis, block_size, return_mask=True
    )
    q = kernels.quantize_linear(x, scale, zero_point, dtype, axis, block_size)
    back = kernels.dequantize_linear(q, scale, zero_point, dtype, axis, block_size)
    assert np.array_equal(y, back)
    wide = np.ones_like(x) if not block_size else np.repeat(scale, 16, 1)[:, :40]
    wide = wide if block_size else (scale if axis != 0 else scale[:, None])
    steps = np.rint(x / wide) + (low + high) // 2
    assert np.array_equal(mask, (steps >= low) & (steps <= high))


def test_gradients_are_those_of_the_paper() -> None:
    x, gradient = numbers((5, 7)) * 2, numbers((5, 7), 1)
    scale, zero_point, low, high = np.linspace(0.1, 0.3, 5).astype(F), np.arange(5) - 2, -8, 7
    found = training.fake_quantize_gradients(x, gradient, scale, zero_point, low, high, 0)
    steps = np.rint(x / scale[:, None]) + zero_point[:, None]
    inside = (steps >= low) & (steps <= high)
    ends = np.clip(steps, low, high) - zero_point[:, None]
    by_scale = np.where(
        inside, np.rint(x / scale[:, None]) - x.astype(float) / scale[:, None], ends
    )
    assert np.array_equal(found.x, gradient * inside)
    np.testing.assert_allclose(found.scale, (gradient * by_scale).sum(1), rtol=1e-5)
    by_zero_point = np.where(inside, 0, -scale[:, None].astype(float))
    np.testing.assert_allclose(found.zero_point, (gradient * by_zero_point).sum(1), rtol=1e-5)


@pytest.mark.parametrize("axis", [None, 0])
def test_learned_scales_lose_less_and_never_more(axis: int | None) -> None:
    x = numbers((8, 4000)) ** 3
    largest = np.abs(x).max() if axis is None else np.abs(x).max(1)
    found = training.learn_scale(x, largest / F(7), quant_min=-8, quant_max=7, axis=axis)
    assert found.mse < found.mse_before / 2
    y = training.fake_quantize(x, found.scale, found.zero_point, -8, 7, axis)
    assert float(np.mean((y - x) ** 2)) == pytest.approx(found.mse, rel=1e-4)
    stay = training.learn_scale(x, largest / F(7), 0, 3, -8, 7, 100.0, 100.0, axis)
    assert stay.mse <= stay.mse_before


def test_a_loss_of_ones_own_teaches_scales() -> None:
    x = numbers((4, 1000))
    fake = training.LearnableFakeQuantize(
        "per_channel_minmax", -8, 7, scale_lr=0.05, qscheme="symmetric"
    )
    losses = []
    for _ in range(60):
        y = fake(x)
        losses.append(float(((y - x) ** 2).mean()))
        passed = fake.backward(2 * (y - x))
        assert fake.mask is not None
        assert np.array_equal(passed != 0, (y != x) & fake.mask)
        fake.step()
    assert losses[-1] < 0.9 * losses[0]
    assert np.array_equal(np.asarray(fake.zero_point), [0] * 4)
    assert (fake.scale_lr, training.LearnableFakeQuantize().scale_lr) == (0.05, 0.01)
    learned = fake.learn(x)
    assert learned.mse <= learned.mse_before <= losses[-1] * 1.1
    with pytest.raises(errors.OptionError):
        training.LearnableFakeQuantize().backward([1.0])


def test_fake_quantization_can_be_switched_off() -> None:
    x = numbers((3, 9))
    fake = training.FakeQuantize("minmax")
    assert not np.array_equal(fake(x), x)
    fake.enable_observer(False)
    before = fake.calculate_qparams()
    fake(x * 100)
    assert fake.calculate_qparams() == before
    fake.enable_fake_quant(False)
    assert np.array_equal(fake(x), x)


@pytest.mark.parametrize("observer", ["minmax", "per_channel_minmax"])
def test_a_gradient_passes_where_fake_quantization_was_off(observer: str) -> None:
    x, gradient = numbers((3, 9)), numbers((3, 9), 1)
    fake = training.LearnableFakeQuantize(observer, -8, 7, qscheme="symmetric")
    fake(x / 10)
    scale, zero_point = fake.calculate_qparams()
    fake.enable_fake_quant(False)
    assert np.array_equal(fake(x), x)
    # The last call counts, whatever was switched after it.
    fake.enable_fake_quant()
    assert np.array_equal(fake.backward(gradient), gradient)
    for grad in (fake.scale_grad, fake.zero_point_grad):
        assert grad is not None
        assert np.shape(grad) == np.shape(scale)
        assert not np.any(grad)
    fake.step()
    after = fake.calculate_qparams()
    assert np.array_equal(after[0], scale)
    assert np.array_equal(after[1], zero_point)
    with pytest.raises(errors.OptionError, match="gradient has 1 elements"):
        fake.backward([1.0])
    fake(x)
    assert not np.array_equal(fake.backward(gradient), gradient)


def test_random_rounding_is_right_on_average() -> None:
    rounded = training.StochasticQuantize(bit_width=8, temperature=1.0, seed=3)
    x = np.full(100_000, 0.3, F)
    # The standard error of the mean of n draws is sqrt(0.3 * 0.7 / n) = 0.0015: four times that.
    assert abs(float(rounded(x, 1.0).mean()) - 0.3) < 0.006
    again = training.StochasticQuantize(seed=3)
    first, second = again(x, 1.0), again(x, 1.0)
    assert not np.array_equal(first, second)
    repeated = training.StochasticQuantize(seed=3)
    assert np.array_equal(repeated(x, 1.0), first)
    assert np.array_equal(repeated(x, 1.0), second)
    nearest = training.StochasticQuantize(temperature=0.0)
    y = numbers((50, 3))
    scale = float(np.abs(y).max()) / 127
    assert np.array_equal(nearest(y), training.fake_quantize(y, scale))


def test_layers_are_registered_by_name() -> None:
    layers = QuantizationAwareTraining(True)
    layers.register_layer("layer1", QuantizationConfig.int8_symmetric())
    layers.register_layer("layer2", QuantizationConfig.int4_per_channel())
    assert layers.registered_layers == ("layer1", "layer2")
    assert layers.get_config("layer1") == QuantizationConfig("int8", True)
    assert layers.get_config("layer3") is None
    x = numbers((4, 5))
    assert layers.fake_quantize(x, "layer1").shape == x.shape
    assert not np.array_equal(layers.fake_quantize(x, "layer2"), x)
    assert np.array_equal(layers.fake_quantize(x, "layer3"), x)
    assert np.array_equal(QuantizationAwareTraining(False).fake_quantize(x, "layer1"), x)


def test_a_layer_is_registered_with_a_config() -> None:
    config: Any = "int8"
    with pytest.raises(errors.OptionError, match="QuantizationConfig"):
        QuantizationAwareTraining().register_layer("layer", config)


def test_what_has_no_counterpart_is_refused_by_name() -> None:
    for call, option in (
        (lambda: QuantizationConfig(reduce_range=True).options(), "reduce_range"),
        (lambda: QuantizationConfig(axis=0).fake_quantize(3.0), "axis"),
        (lambda: observers.PercentileObserver("most"), "percentile"),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.OptionError, match=option) as caught:
            call()
        assert caught.value.option == option
    assert QuantizationConfig().fake_quantize([]).shape == (0,)


@pytest.mark.parametrize("axis", [None, 0])
def test_small_numbers_have_small_scales(axis: int | None) -> None:
    x = numbers((4, 64)) * F(1e-9)
    y = QuantizationConfig(axis=axis).fake_quantize(x)
    assert np.abs(y - x).max() < np.abs(x).max() / 200
    learning = training.LearnableFakeQuantize("minmax", -8, 7, qscheme="symmetric", eps=1e-30)
    before = learning(x)
    learning.backward(2 * (before - x))
    learning.step()
    assert np.abs(learning(x) - x).max() < np.abs(x).max() / 10


PRESETS = {
    "int8": ("int8", True, None, None),
    "int8_symmetric": ("int8", True, None, None),
    "int4": ("int4", True, None, None),
    "int8_asymmetric": ("int8", False, None, None),
    "uint8": ("uint8", False, None, None),
    "int4_per_channel": ("int4", True, 0, None),
    "per_channel": ("int8", True, 0, None),
    "group_wise": ("int4", True, 0, 32),
    "qat": ("int8", True, None, None),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_they_are_called(name: str) -> None:
    config = getattr(QuantizationConfig, name)()
    found = (config.dtype, config.symmetric, config.axis, config.group_size)
    assert found == PRESETS[name]
    x = numbers((33, 6))
    y = config.fake_quantize(x)
    # Half a step of the coarsest grid, which int4 lays over the largest value; affine grids less.
    assert np.abs(y - x).max() <= np.abs(x).max() / (7.5 if "4" in config.dtype else 127.5) / 1.9
    assert np.array_equal(config.fake_quantize(np.zeros((2, 3), F)), np.zeros((2, 3)))


def test_presets_for_round_trips_of_a_few_numbers() -> None:
    x = np.array([-1.0, -0.5, 0.0, 0.5, 1.0], F)
    assert np.abs(QuantizationConfig.int8_symmetric().fake_quantize(x) - x).max() < 0.1
    x = np.arange(4, dtype=F)
    assert np.abs(QuantizationConfig.int8_asymmetric().fake_quantize(x) - x).max() < 0.05
    rows = np.array([[1.0, 2.0], [10.0, 20.0]], F)
    per_channel = QuantizationConfig.int4_per_channel()
    assert np.shape(per_channel._numbers(rows, per_channel._observer())[0]) == (2,)
    ones = np.ones((10, 10), F)
    assert np.mean((QuantizationConfig.int8_symmetric().fake_quantize(ones) - ones) ** 2) < 0.01
