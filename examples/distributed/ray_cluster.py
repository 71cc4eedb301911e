"""Calibrates with the workers of a Ray cluster: `pip install ray`."""

import tempfile

import ray

import quantize_rs


class Ray:
    """An executor of Ray's tasks."""

    workers = 2

    def submit(self, function, *args):
        return ray.remote(function).options(max_retries=0).remote(*args).future()


def main() -> None:
    digits = quantize_rs.examples.digits()
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    ray.init(num_cpus=2)  # ray.init("auto") for a cluster
    # A folder that all workers reach, for what weights are rounded with: here of this machine.
    ranges = quantize_rs.distributed.calibrate(
        plan, digits.calibration, Ray(), moments=tempfile.gettempdir()
    )
    print(plan.apply(ranges).save("digits.int8.onnx"))


if __name__ == "__main__":
    main()
