"""The check trt-network: TensorRT's imported network, lifted to ONNX and compared with the model."""
