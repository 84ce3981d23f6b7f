# Images of Muster, one for each role, from one build:
#   docker build --target coordinator -t muster-coordinator .
# Targets: metadata, discovery, coordinator, server (all roles, and the commands muster and muster-server).
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
RUN python3 -m venv /opt/muster && /opt/muster/bin/pip install --quiet --no-cache-dir uv
WORKDIR /src
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/muster
COPY requirements-server.lock ./
RUN /opt/muster/bin/uv pip install --quiet --require-hashes -r requirements-server.lock
COPY README.md LICENSE ./
COPY protos protos
COPY clients/python clients/python
COPY services services
RUN /opt/muster/bin/uv pip install --quiet --no-deps ./protos ./clients/python ./services \
 && /opt/muster/bin/uv pip uninstall --quiet uv pip

FROM ${PYTHON_IMAGE} AS server
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="muster" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/muster /opt/muster
# Containers listen on every address; what others are told is MUSTER_…_ADVERTISE.
ENV PATH=/opt/muster/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    MUSTER_METADATA_LISTEN=0.0.0.0:7420 \
    MUSTER_DISCOVERY_LISTEN=0.0.0.0:7400 \
    MUSTER_COORDINATOR_LISTEN=0.0.0.0:7410 \
    MUSTER_LOG_FORMAT=json
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["muster-server"]
CMD ["--roles", "all"]

FROM server AS metadata
EXPOSE 7420
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7420"]
CMD ["--roles", "metadata"]

FROM server AS discovery
EXPOSE 7400
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7400"]
CMD ["--roles", "discovery"]

FROM server AS coordinator
EXPOSE 7410
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7410"]
CMD ["--roles", "coordinator"]
