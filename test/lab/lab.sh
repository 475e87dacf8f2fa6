# A Docker engine of our own, for as long as one script runs. Source it:
#
#   . test/lab/lab.sh
#   lab_up || exit 0      # says why, when no engine answers and none can be started
#   trap lab_down EXIT
#
# An engine that answers already is used as it is, and left as it was but for images named sentinel-lab/*. Otherwise root
# starts a private one with its socket, data and log under $LAB, a new temporary directory; Debian's packages that it needs
# are installed when they are missing. lab_down ends every container of a private engine and the engine, puts iptables and
# ip_forward back, and removes $LAB.
# shellcheck shell=bash

LAB=$(mktemp -d "${TMPDIR:-/tmp}/sentinel-lab.XXXXXX")
LAB_OWN= # process id of the engine that we started
LAB_FORWARD=

lab_skip() {
  echo "SKIP containers: $*" >&2
  return 1
}

# lab_install COMMAND=PACKAGE...: the packages of the commands that PATH lacks. A service that a package brings is not
# started: the machine's policy file says no for as long as apt runs.
lab_install() {
  local pair packages=() policy=/usr/sbin/policy-rc.d own=
  for pair; do command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}"); done
  [ ${#packages[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    lab_skip "not installed, and no root or no apt-get to install it: ${packages[*]}"
    return 1
  fi
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && own=yes
  fi
  local rc=0
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"; } \
    >"$LAB/apt.log" 2>&1 </dev/null || rc=$?
  [ -z "$own" ] || rm -f "$policy"
  [ "$rc" = 0 ] || lab_skip "apt-get install ${packages[*]}: $(tail -n 1 "$LAB/apt.log")"
}

lab_answers() { docker version >/dev/null 2>&1; }

lab_up() {
  if lab_answers; then
    echo "containers: using the engine that answers" >&2
    return 0
  fi
  if [ -n "${DOCKER_HOST:-}" ]; then lab_skip "DOCKER_HOST=$DOCKER_HOST does not answer"; return 1; fi
  if [ "$(uname -s)" != Linux ]; then lab_skip "no Docker engine answers, and only on Linux can one be started"; return 1; fi
  if [ "$(id -u)" != 0 ]; then lab_skip "no Docker engine answers, and only root can start one"; return 1; fi
  lab_install dockerd=docker.io iptables=iptables ip=iproute2 || return 1

  iptables-save >"$LAB/iptables" 2>/dev/null || :
  LAB_FORWARD=$(cat /proc/sys/net/ipv4/ip_forward)
  export DOCKER_HOST=unix://$LAB/docker.sock
  # Its own session, so that Ctrl-C leaves it to lab_down; and it ends with this shell even when that is killed. Addresses
  # that are not Docker's usual ones: this machine may be a container itself.
  setsid setpriv --pdeathsig TERM dockerd --host "$DOCKER_HOST" --data-root "$LAB/data" --exec-root "$LAB/exec" \
    --pidfile "$LAB/docker.pid" --bip 10.213.0.1/24 --default-address-pool base=10.213.128.0/17,size=24 \
    >"$LAB/dockerd.log" 2>&1 </dev/null &
  LAB_OWN=$!
  for _ in $(seq 150); do
    if lab_answers || ! kill -0 "$LAB_OWN" 2>/dev/null; then break; fi
    sleep 0.2
  done
  if ! lab_answers; then
    lab_skip "dockerd did not start: $(grep -E 'level=(error|fatal)|failed to start' "$LAB/dockerd.log" | tail -n 1)"
    lab_down
    unset DOCKER_HOST
    return 1
  fi
  # testcontainers-go: no container of its own to clean up after us, and the engine's ports are on this machine.
  export TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1
  # Another client on PATH may lack the plugin that builds; the one of the engine's package does not need it.
  mkdir -p "$LAB/bin"
  ln -sf /usr/bin/docker "$LAB/bin/docker"
  export PATH=$LAB/bin:$PATH DOCKER_BUILDKIT=1 DOCKER_CONFIG=$LAB/config
}

# lab_compose: docker compose, as a plugin under $LAB when the machine has none.
lab_compose() {
  if docker compose version >/dev/null 2>&1; then return 0; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    lab_skip "no docker compose, and no root or no apt-get to fetch it"
    return 1
  fi
  export DOCKER_CONFIG=${DOCKER_CONFIG:-$LAB/config}
  local plugins=$LAB/config/cli-plugins
  [ "$DOCKER_CONFIG" = "$LAB/config" ] || plugins=$DOCKER_CONFIG/cli-plugins
  mkdir -p "$plugins"
  if ! test/lab/fetch-deb "$LAB/deb" trixie docker-compose >"$LAB/apt.log" 2>&1; then
    lab_skip "no docker compose, and it could not be fetched: $(tail -n 1 "$LAB/apt.log")"
    return 1
  fi
  mv "$LAB/deb/usr/libexec/docker/cli-plugins/docker-compose" "$plugins/"
  docker compose version >/dev/null
}

lab_down() {
  local table
  if [ -n "$LAB_OWN" ]; then
    docker ps -aq 2>/dev/null | xargs -r docker rm -f >/dev/null 2>&1 || :
    docker network prune -f >/dev/null 2>&1 || :
    kill "$LAB_OWN" 2>/dev/null || :
    wait "$LAB_OWN" 2>/dev/null || :
    LAB_OWN=
    ip link del docker0 2>/dev/null || :
    # A table that was not loaded before is not in what was saved: then all its rules are Docker's.
    for table in filter nat; do
      if grep -qx "\*$table" "$LAB/iptables" 2>/dev/null; then
        iptables-restore --table "$table" <"$LAB/iptables" || :
      else
        iptables -t "$table" -F 2>/dev/null || :
        iptables -t "$table" -X 2>/dev/null || :
        [ "$table" != filter ] || iptables -P FORWARD ACCEPT 2>/dev/null || :
      fi
    done
    echo "$LAB_FORWARD" >/proc/sys/net/ipv4/ip_forward || :
    awk -v under="$LAB/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
  elif lab_answers; then
    docker images --quiet 'sentinel-lab/*' | sort -u | xargs -r docker rmi --force >/dev/null 2>&1 || :
  fi
  rm -rf "$LAB"
}
