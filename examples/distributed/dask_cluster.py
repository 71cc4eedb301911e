"""Calibrates with the workers of a Dask cluster: `pip install "quantization-rs[dask]"`."""

import tempfile

from distributed import Client, LocalCluster

import quantize_rs


def main() -> None:
    digits = quantize_rs.examples.digits()
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    # Client("tcp://scheduler:8786") for a cluster; its workers need the two files at these paths,
    # and a folder that all reach, "/shared/scratch", for what weights are rounded with.
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        ranges = quantize_rs.distributed.calibrate(
            plan, digits.calibration, client, moments=tempfile.gettempdir()
        )
    print(plan.apply(ranges).save("digits.int8.onnx"))


if __name__ == "__main__":
    main()
