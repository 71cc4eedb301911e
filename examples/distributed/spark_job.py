"""Calibrates with the executors of Spark: `pip install pyspark pandas pyarrow`."""

import shutil
import tempfile

import pandas as pd
from pyspark.sql import SparkSession

import quantize_rs
from quantize_rs import distributed


def main() -> None:
    digits = quantize_rs.examples.digits()
    plan = quantize_rs.open(digits.model).plan(activations="uint8")
    # A folder that the workers and this program reach: here all are on one machine.
    folder = tempfile.mkdtemp()
    shards = distributed.split(plan, digits.calibration, 2, moments=folder)

    def calibrated(batches):
        for batch in batches:
            yield pd.DataFrame({"ranges": [shards[index]() for index in batch["id"]]})

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    indices = spark.range(len(shards), numPartitions=len(shards))
    rows = indices.mapInPandas(calibrated, "ranges string").collect()
    ranges = distributed.merge(row.ranges for row in rows)
    print(plan.apply(ranges).save("digits.int8.onnx"))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
