#include "server/rpc/copy_pool.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace attend {

struct CopyPool::Job {
  std::vector<CopyPiece> pieces;
  std::function<void()> done;
  std::atomic<size_t> turns_left{0};
};

namespace {

void Copy(const CopyPiece* begin, const CopyPiece* end) {
  for (const CopyPiece* piece = begin; piece != end; ++piece) {
    std::memcpy(piece->to, piece->from.data, piece->from.size);
  }
}

}  // namespace

CopyPool::CopyPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

CopyPool::~CopyPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::Gather(std::vector<CopyPiece> pieces, std::function<void()> done) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.from.size;
  if (bytes <= kInlineBytes) {
    Copy(pieces.data(), pieces.data() + pieces.size());
    done();
    return;
  }
  Job* job = new Job;  // deleted by its last turn
  job->pieces = std::move(pieces);
  job->done = std::move(done);
  std::vector<Turn> turns;
  size_t begin = 0;
  size_t in_turn = 0;
  for (size_t i = 0; i < job->pieces.size(); ++i) {
    in_turn += job->pieces[i].from.size;
    if (in_turn >= kChunkBytes || i + 1 == job->pieces.size()) {
      turns.push_back({job, begin, i + 1});
      begin = i + 1;
      in_turn = 0;
    }
  }
  job->turns_left.store(turns.size(), std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    turns_.insert(turns_.end(), turns.begin(), turns.end());
  }
  if (turns.size() == 1) {
    wake_.NotifyOne();
  } else {
    wake_.NotifyAll();
  }
}

void CopyPool::Work() {
  while (true) {
    Turn turn;
    {
      MutexLock lock(mutex_);
      while (turns_.empty()) {
        if (stopping_) return;
        wake_.Wait(mutex_);
      }
      turn = turns_.front();
      turns_.pop_front();
    }
    Copy(turn.job->pieces.data() + turn.begin, turn.job->pieces.data() + turn.end);
    if (turn.job->turns_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      turn.job->done();
      delete turn.job;
    }
  }
}

}  // namespace attend
