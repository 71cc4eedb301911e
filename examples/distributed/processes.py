"""Calibrates with the processes of this machine."""

import quantize_rs


def main() -> None:
    digits = quantize_rs.examples.digits()
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    ranges = quantize_rs.distributed.calibrate(plan, digits.calibration, 2, progress=True)
    print(plan.apply(ranges).save("digits.int8.onnx"))


if __name__ == "__main__":  # each process imports this file
    main()
