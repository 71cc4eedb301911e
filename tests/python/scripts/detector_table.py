"""Write the calibration table of a detector, reading samples in strides. Usage: model images.npy"""

import sys

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    create_calibrator,
    write_calibration_table,
)
from onnxruntime.quantization.calibrate import CalibrationMethod


class StridedReader(CalibrationDataReader):
    def __init__(self, path, stride):
        self.images = np.load(path)
        self.stride = stride
        self.start = self.end = 0

    def __len__(self):
        return len(self.images)

    def set_range(self, start_index, end_index=None):
        self.start = start_index
        self.end = len(self.images) if end_index is None else end_index

    def get_next(self):
        if self.start >= self.end:
            return None
        image = self.images[self.start : self.start + 1]
        self.start += 1
        return {"image": image}


model, images = sys.argv[1:]
calibrator = create_calibrator(
    model,
    ["Conv", "MatMul"],
    augmented_model_path="augmented.onnx",
    calibrate_method=CalibrationMethod.Percentile,
)
calibrator.set_execution_providers(["CPUExecutionProvider"])
reader = StridedReader(images, stride=8)
for start in range(0, len(reader), reader.stride):
    reader.set_range(start_index=start, end_index=start + reader.stride)
    calibrator.collect_data(reader)
table = calibrator.compute_data()
write_calibration_table(table)
print(len(table.keys()), "tensors")
