// Certificates made on the spot: an authority, and what it signs.

#ifndef ATTEND_TESTS_TESTING_CERTIFICATES_H_
#define ATTEND_TESTS_TESTING_CERTIFICATES_H_

#include <memory>
#include <string>

namespace attend::testing {

struct PemPair {
  std::string cert, key;
};

class Authority {
 public:
  explicit Authority(const std::string& name);
  ~Authority();

  const std::string& cert() const { return cert_; }

  // For "localhost" and 127.0.0.1, with `name` as its common name; valid from and to so many
  // seconds from now.
  PemPair Issue(const std::string& name, long valid_from = -3600, long valid_to = 86400) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string cert_;
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_CERTIFICATES_H_
