# Two images from one tree: `service` (API and control, no torch) and `worker` (a node).
#   docker build --target service -t footplate-service .
#   docker build --target worker -t footplate-worker .
# Other libraries in the worker: --build-arg EXTRAS="hub trl st recipes" (pyproject.toml lists the extras)
# A CPU-only worker: --build-arg PIP_FIND_LINKS=<where the CPU wheel of the pinned torch is>
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
RUN pip install --quiet -c constraints.txt uv && uv venv --quiet /opt/footplate
ENV VIRTUAL_ENV=/opt/footplate

# What we depend on changes seldom and is a layer of its own; our own code comes last.
FROM build AS build-service
RUN uv pip install --quiet --compile-bytecode -c constraints.txt -r pyproject.toml --extra service --extra otel --extra s3
COPY . .
RUN uv pip install --quiet --compile-bytecode --no-deps .

FROM build AS build-worker
ARG PIP_FIND_LINKS=
ARG EXTRAS="hub trl"
RUN uv pip install --quiet --compile-bytecode ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
        -c constraints.txt -r pyproject.toml --extra worker --extra nvidia --extra otel --extra s3 \
        $(for extra in $EXTRAS; do echo "--extra $extra"; done)
COPY . .
RUN uv pip install --quiet --compile-bytecode --no-deps .

# A named volume takes its owner from the folder it is first mounted on, so the folders stand here already.
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 footplate && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin footplate \
    && mkdir -p /var/lib/footplate/artifacts /var/lib/footplate/node-1 /var/lib/footplate/models /var/lib/footplate/data \
    && chown -R footplate:footplate /var/lib/footplate
ENV PATH=/opt/footplate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FOOTPLATE_HOME=/var/lib/footplate
WORKDIR /var/lib/footplate
USER 10001:10001

FROM base AS service
COPY --from=build-service /opt/footplate /opt/footplate
ENV FOOTPLATE_HOST=0.0.0.0 FOOTPLATE_PORT=8080
EXPOSE 8080
ENTRYPOINT ["python", "-m", "service"]
CMD ["api"]

FROM base AS worker
COPY --from=build-worker /opt/footplate /opt/footplate
ENTRYPOINT ["python", "-m", "worker"]
