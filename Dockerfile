# onnxfix with ONNX Runtime for the CPU and TensorRT-RTX, whose parser and builder need no GPU:
#   docker build -t onnxfix .
#   docker run --rm -v "$PWD:/work" onnxfix check --trt model.onnx
# With a GPU and NVIDIA's container toolkit, engines are executed as well: docker run --gpus all ...
# docs/ci.md says more. The instructions are run by tests/test_ci_files.py.
FROM python:3.12-slim AS build

# What is installed besides onnxfix; "gpu,tensorrt-rtx" has ONNX Runtime for CUDA instead.
ARG EXTRAS=cpu,tensorrt-rtx

COPY . /src
RUN python -m venv /opt/onnxfix
RUN /opt/onnxfix/bin/python -m pip install --no-cache-dir -c /src/constraints.txt "/src[${EXTRAS}]"
# The index of the rules is made once, here: the user of a container cannot write it.
RUN /opt/onnxfix/bin/onnxfix rules > /opt/onnxfix/rules.txt

FROM python:3.12-slim
COPY --from=build /opt/onnxfix /opt/onnxfix
ENV PATH=/opt/onnxfix/bin:$PATH HOME=/tmp NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["onnxfix"]
CMD ["--help"]
