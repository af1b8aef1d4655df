# A worker of Dataflow, Flink or Spark: the batch image with the boot program of Apache Beam's own
# image, which must be of the same Beam and the same Python. It runs as root, as Beam's image does.
# Build after mrnn-batch: see serving/deploy/README.md.
FROM apache/beam_python3.11_sdk:2.77.0 AS sdk

FROM mrnn-batch:0.1.0
USER 0
RUN pip install --no-cache-dir --constraint /opt/mrnn_tf/constraints.txt "apache-beam[gcp]"
COPY --from=sdk /opt/apache/beam /opt/apache/beam
ENTRYPOINT ["/opt/apache/beam/boot"]
CMD []
