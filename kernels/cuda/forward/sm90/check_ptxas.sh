#!/bin/sh
# Runs a compile command and fails when ptxas reports spilled registers or wgmma products that it
# serialised (messages C7500 to C7599). As a compiler launcher: check_ptxas.sh [ccache] nvcc ...
# The command must carry -Xptxas -v.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
  cat "$log"
  exit "$status"
fi
# What is not ptxas's report is passed on.
grep -v -e '^ptxas info' -e '^    [0-9]* bytes stack frame' -e '^$' "$log"
if grep -e '(C75[0-9][0-9])' -e '[1-9][0-9]* bytes spill' "$log" >&2; then
  echo "check_ptxas.sh: spills or serialised products in a hot kernel: $*" >&2
  exit 1
fi
exit 0
