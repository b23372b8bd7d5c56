# Sourced by deploy/quickstart and tests/run: runs commands as named steps with a time limit and a
# log. A step says little when it passes and shows progress while it runs.

STEP_LOGS=${STEP_LOGS:-}  # folder of the logs, set by the script before the first step
STEP_CHILD=               # pid of the running step, for StopStep

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() {
  warn "$(basename "$0"): $*"
  exit 1
}

# Ends the running step, if any, with everything it started.
StopStep() {
  if [[ -n $STEP_CHILD ]]; then
    kill -TERM "$STEP_CHILD" 2>/dev/null || true
    wait "$STEP_CHILD" 2>/dev/null || true
    STEP_CHILD=
  fi
}

# The last "12/340" that ninja, ctest or the like printed into log $1, or nothing.
StepProgress() {
  tail -c 4000 "$1" 2>/dev/null | grep -oE '^ *\[?[0-9]+/[0-9]+[] ]' | tail -n 1 |
    tr -d '[] ' || true
}

# How many jobs a build may run: one a core, and 1.5 GiB of free memory for each.
BuildJobs() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(awk '/^MemAvailable:/ {print int($2 / 1572864)}' /proc/meminfo)
  if ((by_memory < 1)); then by_memory=1; fi
  echo $((cores < by_memory ? cores : by_memory))
}

# Step NAME SECONDS COMMAND...: runs COMMAND for at most SECONDS, its output in $STEP_LOGS/NAME.log.
# Returns its exit status (124: it ran out of time) and leaves the seconds it took in STEP_SECONDS.
Step() {
  local name=$1 limit=$2 status=0 progress shown='' start=$SECONDS next_line=$((SECONDS + 60))
  shift 2
  local log=$STEP_LOGS/${name//[^A-Za-z0-9_-]/_}.log
  mkdir -p "$STEP_LOGS"
  # timeout leads a process group of its own and passes a TERM on to all of it.
  timeout --kill-after=15 "$limit" "$@" </dev/null >"$log" 2>&1 &
  STEP_CHILD=$!
  while kill -0 "$STEP_CHILD" 2>/dev/null; do
    sleep 0.1
    if [[ -t 1 ]]; then
      progress=$(StepProgress "$log")
      printf '\r  %-34s %5ds  %-14s' "$name" $((SECONDS - start)) "$progress"
      shown=yes
    elif ((SECONDS >= next_line)); then
      next_line=$((SECONDS + 60))
      say "  $name: still running, $((SECONDS - start)) s $(StepProgress "$log")"
    fi
  done
  wait "$STEP_CHILD" || status=$?
  STEP_CHILD=
  STEP_SECONDS=$((SECONDS - start))
  if [[ -n $shown ]]; then printf '\r%64s\r' ''; fi
  if ((status == 0)); then
    printf '  %-34s %5ds  ok\n' "$name" "$STEP_SECONDS"
  elif ((status == 124 || status == 137)); then
    printf '  %-34s %5ds  ran past its limit of %d s\n' "$name" "$STEP_SECONDS" "$limit"
  else
    printf '  %-34s %5ds  FAILED (exit status %d)\n' "$name" "$STEP_SECONDS" "$status"
  fi
  return "$status"
}

# The end of the log of step NAME, indented, and where the rest is.
ShowLog() {
  local log=$STEP_LOGS/${1//[^A-Za-z0-9_-]/_}.log
  tail -n "${2:-40}" "$log" | sed 's/^/    | /'
  say "    whole log: $log"
}
