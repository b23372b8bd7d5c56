#include "grpcpp/grpcpp.h"
#include "server/ops/metrics.h"

namespace attend {

BuildInfo ThisBuild() {
  BuildInfo info;
  info.version = ATTEND_VERSION;
  info.revision = ATTEND_REVISION;
#if defined(__clang__)
  info.compiler = "clang " __clang_version__;
#else
  info.compiler = "gcc " __VERSION__;
#endif
  info.cuda = ATTEND_CUDA_VERSION;
  info.grpc = grpc::Version();
  return info;
}

}  // namespace attend
