"""The checks that build with TensorRT and execute engines: trt-build, trt-gpu, and the batch sweep."""
