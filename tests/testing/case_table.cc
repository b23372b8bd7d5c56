#include "tests/testing/case_table.h"

#include "tests/testing/case_rows.h"

namespace attend::testing {

const std::vector<Case>& CaseTable() {
  static const Cases& table = *[] {
    auto* cases = new Cases;
    AddShapeCases(*cases);
    AddScoreCases(*cases);
    AddTrapCases(*cases);
    return cases;
  }();
  return table;
}

int64_t Scaled(int64_t n) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return n / 4;
#else
  return n;
#endif
}

}  // namespace attend::testing
