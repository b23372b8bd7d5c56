# attend-server and the attend command line.
#
#   docker build --target cpu  -t attend:cpu .
#   docker build --target cuda -t attend:cuda .
#
# The CUDA runtime is linked statically: the final cuda image needs the driver of its host (580 or
# newer for CUDA 13) through the NVIDIA container toolkit, and no CUDA library.

ARG CPU_IMAGE=debian:bookworm-slim
ARG CUDA_BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG CUDA_RUN_IMAGE=ubuntu:24.04

# ---- build: packages first, so that a change of source does not install them again --------------
FROM ${CPU_IMAGE} AS build-cpu
ENV ATTEND_CUDA=OFF
FROM ${CUDA_BUILD_IMAGE} AS build-cuda
ENV ATTEND_CUDA=ON

FROM build-cpu AS compiled-cpu
COPY deploy/install_packages /src/deploy/
RUN /src/deploy/install_packages build && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN /src/deploy/image_build

FROM build-cuda AS compiled-cuda
COPY deploy/install_packages /src/deploy/
RUN /src/deploy/install_packages build && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN PATH=$PATH:/usr/local/cuda/bin /src/deploy/image_build

# ---- run: the two programs and the packages of the libraries that they load -----------------------
FROM ${CPU_IMAGE} AS run-cpu
COPY --from=compiled-cpu /out/packages /tmp/packages
RUN apt-get -qq update \
    && xargs -r env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
       </tmp/packages >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /tmp/packages
COPY --from=compiled-cpu /out/bin/ /usr/local/bin/

FROM ${CUDA_RUN_IMAGE} AS run-cuda
COPY --from=compiled-cuda /out/packages /tmp/packages
RUN apt-get -qq update \
    && xargs -r env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
       </tmp/packages >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /tmp/packages
COPY --from=compiled-cuda /out/bin/ /usr/local/bin/
# What the NVIDIA container toolkit mounts into the container: the driver's library and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
