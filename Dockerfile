# attend-server and the attend command line.
#
#   docker build --target cpu  -t attend:cpu .
#   docker build --target cuda -t attend:cuda .
#
# Needs BuildKit (the default since Docker 23; DOCKER_BUILDKIT=1 before).
#
# The CUDA runtime is linked statically: the final cuda image needs the driver of its host (580 or
# newer for CUDA 13) through the NVIDIA container toolkit, and no CUDA library.

ARG CPU_IMAGE=debian:bookworm-slim
ARG CUDA_BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG CUDA_RUN_IMAGE=ubuntu:24.04

# ---- build: packages first, and compiled objects are kept: a change of source costs little ----
FROM ${CPU_IMAGE} AS build-cpu
ENV ATTEND_CUDA=OFF
FROM ${CUDA_BUILD_IMAGE} AS build-cuda
ENV ATTEND_CUDA=ON

FROM build-cpu AS compiled-cpu
COPY deploy/install_packages /src/deploy/
RUN /src/deploy/install_packages build ccache && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN --mount=type=cache,target=/root/.cache/ccache /src/deploy/image_build

FROM build-cuda AS compiled-cuda
COPY deploy/install_packages /src/deploy/
RUN /src/deploy/install_packages build ccache && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN --mount=type=cache,target=/root/.cache/ccache \
    PATH=$PATH:/usr/local/cuda/bin /src/deploy/image_build

# ---- run: the two programs and the packages of the libraries that they load -----------------------
FROM ${CUDA_RUN_IMAGE} AS cuda
ARG CUDA_RUN_IMAGE
COPY --from=compiled-cuda /out/packages /tmp/packages
RUN apt-get -qq update \
    && xargs -r env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
       </tmp/packages >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /tmp/packages
COPY --from=compiled-cuda /out/bin/ /usr/local/bin/
# What the NVIDIA container toolkit mounts into the container: the driver's library and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=
LABEL org.opencontainers.image.title="attend" \
      org.opencontainers.image.description="Attention server: batches Q, K, V requests into fused kernel launches" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$CUDA_RUN_IMAGE"
# Inside a container loopback reaches nobody: listen on all addresses, publish ports with care.
ENV ATTEND_LISTEN=0.0.0.0:50051 ATTEND_HTTP_LISTEN=0.0.0.0:9464
USER 10001:10001
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["attend", "health", "--addr=127.0.0.1:50051"]
ENTRYPOINT ["attend-server"]

# Last, and so the default target.
FROM ${CPU_IMAGE} AS cpu
ARG CPU_IMAGE
COPY --from=compiled-cpu /out/packages /tmp/packages
RUN apt-get -qq update \
    && xargs -r env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
       </tmp/packages >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /tmp/packages
COPY --from=compiled-cpu /out/bin/ /usr/local/bin/
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=
LABEL org.opencontainers.image.title="attend" \
      org.opencontainers.image.description="Attention server: batches Q, K, V requests into fused kernel launches" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$CPU_IMAGE"
# Inside a container loopback reaches nobody: listen on all addresses, publish ports with care.
ENV ATTEND_LISTEN=0.0.0.0:50051 ATTEND_HTTP_LISTEN=0.0.0.0:9464
USER 10001:10001
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["attend", "health", "--addr=127.0.0.1:50051"]
ENTRYPOINT ["attend-server"]
