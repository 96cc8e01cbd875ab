# The image of everything that loadgen runs in a cluster: generators, datanodes, node helper, agent model.
#
#   docker build -t loadgen:0.1.0 .
#
# BASE is any Debian 12 or newer, with or without Python >= 3.11: what it lacks is installed. Its user is nobody in
# particular; the few pods that need root say so themselves.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
RUN set -e; missing=""; \
    command -v gcc >/dev/null || missing="$missing gcc"; \
    command -v clang >/dev/null || missing="$missing clang"; \
    command -v musl-gcc >/dev/null || missing="$missing musl-tools"; \
    [ -f /usr/include/stdio.h ] || missing="$missing libc6-dev"; \
    [ -f /usr/include/bpf/bpf_helpers.h ] || missing="$missing libbpf-dev"; \
    command -v python3 >/dev/null || missing="$missing python3 python3-venv python3-dev"; \
    [ -z "$missing" ] || { apt-get -q update; apt-get -q install -y --no-install-recommends $missing; }
WORKDIR /src

# Dependencies first: they change less often than the source. What only the command line needs stays out.
COPY pyproject.toml ./
RUN set -e; python3 -m venv /opt/loadgen/venv; \
    python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
leave = {"kubernetes", "pyarrow", "rich", "typer"}; \
wanted = project["dependencies"] + project["optional-dependencies"]["kube-image"]; \
print(*[pin for pin in wanted if pin.partition("==")[0] not in leave], sep="\n")' > requirements.txt; \
    /opt/loadgen/venv/bin/pip install -q --no-cache-dir -r requirements.txt

COPY . ./
RUN set -e; /opt/loadgen/venv/bin/pip install -q --no-cache-dir --no-deps .; \
    test -x /opt/loadgen/venv/lib/python3*/site-packages/loadgen/drivers/lookup-glibc; \
    test -x /opt/loadgen/venv/lib/python3*/site-packages/loadgen/drivers/lookup-musl; \
    ln -s /opt/loadgen/venv/lib/python3*/site-packages/loadgen/kube/locustfile.py /opt/loadgen/locustfile.py; \
    ln -s /opt/loadgen/venv/lib/python3*/site-packages/loadgen/kube/lookupfile.py /opt/loadgen/lookupfile.py; \
    # Copied to a node's CNI folder, where there may be no libc: it brings its own.
    [ ! -f loadgen/kube/plugin.c ] || \
      musl-gcc -static -std=gnu11 -O2 -Wall -Wextra -o /opt/loadgen/loadgen-cni loadgen/kube/plugin.c; \
    /opt/loadgen/venv/bin/pip uninstall -q -y setuptools pip; \
    find /opt/loadgen/venv/lib -type d -name tests -path '*/numpy/*' -prune -exec rm -r {} +; \
    find /opt/loadgen/venv/lib -type d -name __pycache__ -prune -exec rm -r {} +; \
    /opt/loadgen/venv/bin/python3 -m compileall -q /opt/loadgen/venv/lib

FROM ${BASE}
RUN set -e; missing=""; \
    command -v nft >/dev/null || missing="$missing nftables"; \
    ldconfig -p | grep -q libbpf.so.1 || missing="$missing libbpf1"; \
    command -v python3 >/dev/null || missing="$missing python3"; \
    [ -z "$missing" ] || { apt-get -q update; apt-get -q install -y --no-install-recommends $missing; \
      rm -rf /var/lib/apt/lists/*; }
COPY --from=build /opt/loadgen /opt/loadgen
ENV PATH=/opt/loadgen/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
CMD ["locust", "--version"]
