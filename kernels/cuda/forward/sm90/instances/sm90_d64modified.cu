#include "kernels/cuda/forward/sm90/sm90_launch.cuh"

ATTEND_SM90_INSTANCE(D64Modified)
