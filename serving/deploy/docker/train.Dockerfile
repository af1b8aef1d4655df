# Trains, exports and indexes. CUDA's libraries come with tensorflow[and-cuda], the driver from the
# host. Build from the root of the repository: see serving/deploy/README.md.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /opt/mrnn_tf
COPY setup.py pyproject.toml constraints.txt README.md ./
COPY mrnn_tf mrnn_tf
COPY trainer trainer
COPY export export
COPY serving serving
RUN pip install --no-cache-dir --constraint constraints.txt ".[train,gpu]" \
    && useradd --uid 10001 --create-home mrnn

USER 10001
WORKDIR /mnt/mrnn
ENTRYPOINT ["python", "-m", "trainer.task"]
CMD ["--help"]
