// gRPC credentials over CredentialFiles: each handshake uses the newest good certificate, each call
// is checked against the newest tokens before its message is read.

#ifndef ATTEND_SERVER_RPC_SERVER_CREDENTIALS_H_
#define ATTEND_SERVER_RPC_SERVER_CREDENTIALS_H_

#include <functional>
#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/rpc/credential_files.h"

namespace attend {

// Encrypted when `options` has a certificate, with client certificates demanded when it has their
// authorities; calls need a token when it has those. `files` may be null only without any of them,
// and must outlive the server. `on_refused` is called for each call without a good token.
//
// Health checks need no token: probes have none, and learn only whether the server serves.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const SecurityOptions& options,
                                                               const CredentialFiles* files,
                                                               std::function<void()> on_refused);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_SERVER_CREDENTIALS_H_
