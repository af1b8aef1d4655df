# TF Serving with the models inside: what is built is what is served.
# Build from the root of the repository, after export.task and export.index.
FROM tensorflow/serving:2.20.0

COPY --chown=10001:10001 models /models
COPY --chown=10001:10001 serving/deploy/tf_serving /config

USER 10001
EXPOSE 8500 8501
ENTRYPOINT ["tensorflow_model_server"]
CMD ["--port=8500", \
     "--rest_api_port=8501", \
     "--model_config_file=/config/models.config", \
     "--allow_version_labels_for_unavailable_models=true", \
     "--enable_batching=true", \
     "--batching_parameters_file=/config/batching.config", \
     "--monitoring_config_file=/config/monitoring.config"]
