#include "tests/testing/certificates.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>

namespace attend::testing {
namespace {

std::string PemOf(int (*write)(BIO*, const void*), const void* what) {
  BIO* bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(write(bio, what), 1);
  char* data;
  const long size = BIO_get_mem_data(bio, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

std::string CertPem(X509* cert) {
  return PemOf(
      [](BIO* bio, const void* p) {
        return PEM_write_bio_X509(bio, static_cast<X509*>(const_cast<void*>(p)));
      },
      cert);
}

std::string KeyPem(EVP_PKEY* key) {
  return PemOf(
      [](BIO* bio, const void* p) {
        return PEM_write_bio_PrivateKey(bio, static_cast<const EVP_PKEY*>(p), nullptr, nullptr, 0,
                                        nullptr, nullptr);
      },
      key);
}

void AddExtension(X509* cert, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(cert, extension, -1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer`, or by itself when null.
X509* MakeCert(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
               long from, long to) {
  static std::atomic<long> serial{1000};
  X509* cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(cert), from);
  X509_gmtime_adj(X509_getm_notAfter(cert), to);
  X509_set_pubkey(cert, key);
  X509_NAME* subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, issuer == nullptr ? subject : X509_get_subject_name(issuer));
  if (issuer == nullptr) {
    AddExtension(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    AddExtension(cert, issuer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  }
  EXPECT_GT(X509_sign(cert, issuer_key, EVP_sha256()), 0);
  return cert;
}

}  // namespace

struct Authority::Impl {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = nullptr;
  ~Impl() {
    X509_free(cert);
    EVP_PKEY_free(key);
  }
};

Authority::Authority(const std::string& name) : impl_(std::make_unique<Impl>()) {
  impl_->cert = MakeCert(name, impl_->key, nullptr, impl_->key, -3600, 864000);
  cert_ = CertPem(impl_->cert);
}

Authority::~Authority() = default;

PemPair Authority::Issue(const std::string& name, long valid_from, long valid_to) const {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = MakeCert(name, key, impl_->cert, impl_->key, valid_from, valid_to);
  PemPair pair{CertPem(cert), KeyPem(key)};
  X509_free(cert);
  EVP_PKEY_free(key);
  return pair;
}

}  // namespace attend::testing
