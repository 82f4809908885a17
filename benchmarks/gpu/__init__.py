"""What needs a GPU: engines of TensorRT and ONNX Runtime on CUDA."""
