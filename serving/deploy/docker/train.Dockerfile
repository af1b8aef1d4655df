# Prepares, trains, evaluates, exports and indexes. With the default EXTRAS on GPUs: CUDA's libraries
# come with tensorflow[and-cuda], the driver from the host. With EXTRAS=train,beam a smaller image for
# batch jobs on CPUs. Build from the root of the repository: see serving/deploy/README.md.
FROM python:3.11-slim-bookworm

# PYTHONSAFEPATH: a checkout in the working directory does not hide the installed package.
ENV PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    TF_CPP_MIN_LOG_LEVEL=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Java is for METEOR.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home mrnn

# The dependencies, which change seldom, with no more of the package than its version.
WORKDIR /opt/mrnn_tf
COPY setup.py pyproject.toml constraints.txt README.md LICENSE ./
COPY mrnn_tf/__init__.py mrnn_tf/__init__.py
ARG EXTRAS=train,beam,gpu
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" cloudml-hypertune

COPY mrnn_tf mrnn_tf
COPY trainer trainer
COPY export export
COPY serving serving
RUN pip install --no-cache-dir --no-deps --force-reinstall .

USER 10001
WORKDIR /mnt/mrnn
ENTRYPOINT ["python", "-m", "trainer.task"]
CMD ["--help"]
