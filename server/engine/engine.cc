#include "server/engine/engine.h"

#include <utility>

#include "server/engine/engine_impl.h"

namespace attend {

Admission::Admission() = default;
Admission::Admission(Admission&&) noexcept = default;
Admission& Admission::operator=(Admission&&) noexcept = default;
Admission::~Admission() = default;

std::byte* Admission::staging() const { return state_ == nullptr ? nullptr : state_->lease.data(); }

size_t Admission::staging_bytes() const { return state_ == nullptr ? 0 : state_->lease.size(); }

MemoryKind Admission::memory_kind() const {
  return state_ == nullptr ? MemoryKind::kHost : state_->memory_kind;
}

void RequestHandle::Cancel() const {
  if (const std::shared_ptr<EngineImpl> engine = engine_.lock()) engine->Cancel(sequence_);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::unique_ptr<Backend> backend,
                                                       const EngineOptions& options,
                                                       EngineObserver* observer) {
  absl::StatusOr<std::shared_ptr<EngineImpl>> impl =
      EngineImpl::Create(std::move(backend), options, observer);
  if (!impl.ok()) return impl.status();
  return std::unique_ptr<Engine>(new Engine(*std::move(impl)));
}

Engine::Engine(std::shared_ptr<EngineImpl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { impl_->Shutdown(); }

const Backend& Engine::backend() const { return impl_->backend(); }

absl::StatusOr<Admission> Engine::Admit(const AdmissionRequest& request) {
  return impl_->Admit(request);
}

RequestHandle Engine::Submit(Request request) { return impl_->Submit(std::move(request)); }

absl::Status Engine::Drain(Clock::time_point deadline) { return impl_->Drain(deadline); }

absl::Status Engine::WarmUp() { return impl_->WarmUp(); }

EngineStats Engine::stats() const { return impl_->stats(); }

absl::Status Engine::Healthy() const { return impl_->Healthy(); }

}  // namespace attend
