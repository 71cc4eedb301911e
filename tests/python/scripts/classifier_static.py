"""Quantize an image classifier with a folder of images. Usage: model images.npy output"""

import os
import sys

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process


class ImageReader(CalibrationDataReader):
    def __init__(self, path, input_name):
        self.images = np.load(path)
        self.input_name = input_name
        self.rewind()

    def get_next(self):
        return next(self.enum_data, None)

    def rewind(self):
        self.enum_data = iter([{self.input_name: image[None]} for image in self.images])


def main():
    model, images, output = sys.argv[1:]
    prepared = output.replace(".onnx", "-prepared.onnx")
    quant_pre_process(model, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        output,
        ImageReader(images, "image"),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QUInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"ActivationSymmetric": False, "CalibMovingAverage": False},
    )
    os.remove(prepared)
    print("Calibrated and quantized model saved.")


if __name__ == "__main__":
    main()
