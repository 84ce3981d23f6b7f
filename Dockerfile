# Images of Muster, one for each role, from one build:
#   docker build --target coordinator -t muster-coordinator .
# Targets: coordinator, discovery (neither Redis' client nor programs beside Python), metadata and server (all roles, and
# the commands muster and muster-server), audit (Spark and its Java).
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS tools
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet --no-cache-dir uv \
 && python3 -m venv --without-pip /opt/muster
WORKDIR /src
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/muster PATH=/opt/uv/bin:$PATH

FROM tools AS packages
COPY README.md LICENSE ./
COPY protos protos
COPY assignors assignors
COPY clients/python clients/python
COPY services services
RUN for package in protos assignors clients/python services services/audit; do uv build --quiet --wheel --out-dir /wheels $package; done

FROM tools AS build
COPY requirements-server.lock ./
RUN uv pip install --quiet --require-hashes -r requirements-server.lock
COPY --from=packages /wheels /wheels
RUN uv pip install --quiet --no-deps /wheels/muster_protos-* /wheels/muster_assignors-* /wheels/muster_client-* /wheels/muster_server-*

# What coordinators and discovery never import: they reach Redis through metadata alone. Pygments colours source text for
# people, pycparser is for builds of cffi.
FROM build AS build-role
RUN uv pip uninstall --quiet redis hiredis pygments pycparser

FROM tools AS build-audit
COPY requirements-audit.lock ./
RUN uv pip install --quiet --require-hashes -r requirements-audit.lock
COPY --from=packages /wheels /wheels
RUN uv pip install --quiet --no-deps /wheels/*

FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="muster" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Spark asks for the name of the user it runs as.
RUN echo muster:x:65532:65532::/tmp:/usr/sbin/nologin >>/etc/passwd
ENV PATH=/opt/muster/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp

FROM base AS audit
COPY --from=build-audit /opt/muster /opt/muster
ENTRYPOINT ["muster-audit"]
CMD ["--help"]

# Containers listen on every address; others get MUSTER_…_ADVERTISE.
FROM base AS listening
ENV MUSTER_METADATA_LISTEN=0.0.0.0:7420 \
    MUSTER_DISCOVERY_LISTEN=0.0.0.0:7400 \
    MUSTER_COORDINATOR_LISTEN=0.0.0.0:7410 \
    MUSTER_LOG_FORMAT=json
ENTRYPOINT ["muster-server"]

FROM listening AS server
COPY --from=build /opt/muster /opt/muster
CMD ["--roles", "all"]

FROM server AS metadata
EXPOSE 7420
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7420"]
CMD ["--roles", "metadata"]

# What clients reach has no program but Python: no shell, package manager or pip for who breaks in.
FROM listening AS role
USER 0
RUN ["python3", "-I", "-c", "import pathlib, shutil; \
  [file.unlink() for folder in ('/usr/bin', '/usr/sbin', '/usr/local/bin', '/usr/local/sbin') \
    for file in pathlib.Path(folder).iterdir() if not file.name.startswith('python')]; \
  [shutil.rmtree(folder) for lib in ('/usr/lib', '/usr/local/lib') for name in ('pip', 'ensurepip') \
    for folder in sorted(pathlib.Path(lib).glob(f'python3*/{name}')) + sorted(pathlib.Path(lib).glob(f'python3*/*-packages/{name}'))]"]
USER 65532:65532
COPY --from=build-role /opt/muster /opt/muster

FROM role AS discovery
EXPOSE 7400
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7400"]
CMD ["--roles", "discovery"]

FROM role AS coordinator
EXPOSE 7410
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "muster_server.probe", "127.0.0.1:7410"]
CMD ["--roles", "coordinator"]
