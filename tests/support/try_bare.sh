#!/bin/bash
# What a newcomer meets (./dev try-bare): this tree on bare Debian 12 machines, which mmdebstrap makes out of this
# machine's own package sources. Each is a root folder with mounts, processes and a host name of its own, and shares
# this machine's network: so do its addresses and its resolver. It has no git, no locale, no line for its host in
# /etc/hosts, and of the tree what a tarball or a clone would bring; packages, jars and modules come anew.
set -euo pipefail
cd "$(dirname "$0")/../.."

bare=$PWD/build/bare  # all that is made lies here, and goes at the end
logs=$PWD/build/bare-logs
user=newcomer

die() {
    echo "try-bare: $*" >&2
    exit 1
}

# --- How this machine's package clients reach their registries, carried over as it is

# The settings that hold for clients in general; none is named after a machine.
client_settings() {
    compgen -e | grep -E -i '^((https?|ftp|all|no)_proxy|(pip|maven|npm_config)_.*|java_tool_options|ssl_cert_(file|dir)|(requests|curl)_ca_bundle|node_extra_ca_certs)$' || true
}

# carry FILE…: those that exist here and not yet there.
carry() {
    local file
    for file in "$@"; do
        if [ -e "$file" ] && [ ! -e "$root$file" ]; then
            mkdir -p "$root$(dirname "$file")"
            cp -RL --preserve=mode "$file" "$root$file"
        fi
    done
}

carry_clients() { # HOME-THERE
    local name file
    settings=()
    for name in $(client_settings); do
        settings+=("$name=${!name}")
        [[ ${!name} != /* ]] || carry "${!name}"
    done
    carry /etc/pip.conf /etc/xdg/pip /etc/npmrc
    mkdir -p "$root$1/.m2"
    for file in .m2/settings.xml .m2/settings-security.xml .pip/pip.conf .config/pip/pip.conf .npmrc; do
        [ ! -e ~/"$file" ] || install -D -m 600 ~/"$file" "$root$1/$file"
    done
    # The package brings a file of its own, so the machine's becomes the user's.
    [ -e ~/.m2/settings.xml ] || [ ! -e /etc/maven/settings.xml ] ||
        cp /etc/maven/settings.xml "$root$1/.m2/settings.xml"
}

sources() {
    local file found=()
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ ! -s "$file" ] || found+=("$file")
    done
    [ ${#found[@]} -gt 0 ] || found=(/etc/apt/sources.list.d/*)
    printf '%s\n' "${found[@]}"
}

# --- A machine

make_machine() { # root|user
    local home=/root file include=ca-certificates from
    mapfile -t from < <(sources)
    [ "$1" = root ] || include+=,sudo
    # Without the lists' targets, which programs of this machine add.
    apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' >"$bare/apt.conf"
    mmdebstrap --quiet --variant=minbase --include=$include --aptopt="$bare/apt.conf" \
        --setup-hook='for d in auth.conf auth.conf.d keyrings; do [ ! -e /etc/apt/$d ] || cp -R /etc/apt/$d "$1/etc/apt/"; done' \
        --essential-hook='[ ! -d /usr/local/share/ca-certificates ] || cp -RL /usr/local/share/ca-certificates "$1/usr/local/share/"' \
        bookworm "$root" "${from[@]}" &>"$logs/$1-debian.log" || { cat "$logs/$1-debian.log" && die "no Debian"; }
    echo bare >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    if [ "$1" = user ]; then
        chroot "$root" useradd -m -s /bin/bash $user
        echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
        home=$(chroot "$root" getent passwd $user | cut -d: -f6)
    fi
    mkdir "$root$home/payonce"
    python3 tests/support/tree.py | tar -c --null -T - | tar -x -C "$root$home/payonce"
    [ "$1" = root ] || [ ! -d .git ] || cp -R .git "$root$home/payonce/"
    carry_clients "$home"
    [ "$1" = root ] || chroot "$root" chown -R $user: "$home"
    as=(env -i "HOME=$home" "PATH=/usr/local/bin:/usr/bin:/bin" "${settings[@]}")
    [ "$1" = root ] || as=(setpriv "--reuid=$user" "--regid=$user" --init-groups "${as[@]}" "USER=$user")
}

# on_machine UMASK ARGV…: from the folder of the tree; the end of this script ends all of it.
on_machine() {
    local mask=$1 code=0
    shift
    # shellcheck disable=SC2016 # expanded by the shell inside
    setpriv --pdeathsig=KILL unshare --mount --pid --uts --ipc --fork --kill-child=KILL -- bash -euc '
        root=$1 mask=$2; shift 2
        hostname bare
        mount --bind "$root" "$root" # as a real root is: a mount
        mount -t proc proc "$root/proc"
        mount -t sysfs -o ro sysfs "$root/sys"
        mount -t tmpfs -o mode=755 tmpfs "$root/dev"
        for node in null zero full random urandom tty; do
            touch "$root/dev/$node"
            mount --bind "/dev/$node" "$root/dev/$node"
        done
        mkdir "$root/dev/pts" "$root/dev/shm"
        mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        ln -s pts/ptmx "$root/dev/ptmx"
        ln -s /proc/self/fd "$root/dev/fd"
        for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "$root/dev/${n#*:}"; done
        umask "$mask"
        code=0
        chroot "$root" "$@" </dev/null || code=$?
        exit $code
    ' bash "$root" "$mask" "$@" &
    child=$!
    wait $child || code=$?
    child=
    return $code
}

# --- All of them

child= failed=0 tries=0
tidy() {
    [ -z "$child" ] || { kill -KILL "$child" && wait "$child"; } 2>/dev/null || true
    # What was killed may still be about to write.
    until rm -rf --one-file-system "$bare" || [ $((++tries)) -eq 10 ]; do sleep 1; done
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

try() { # root|user COMMAND…
    local who=$1 log began=$SECONDS rounds
    shift
    log=$logs/$who-$1.log
    echo "try-bare: as $who: ./dev $* (${log#"$PWD"/})"
    # shellcheck disable=SC2016 # expanded by the shell inside
    if on_machine "${masks[$who]}" "${as[@]}" bash -c 'cd ~/payonce && exec ./dev "$@"' bash "$@" &>"$log"; then
        tail -n 2 "$log"
        echo "try-bare: as $who: ./dev $*: fine after $((SECONDS - began)) s"
    else
        tail -n 60 "$log"
        echo "try-bare: as $who: ./dev $*: FAILED after $((SECONDS - began)) s"
        failed=1
    fi
    rounds=$(grep -c '^dev: installing' "$log") || true
    [ "$rounds" -le 1 ] || { echo "try-bare: packages were installed in $rounds rounds" && failed=1; }
}

people=(root user)
if [ "${1:-}" = --as ]; then
    [[ ${2:-} =~ ^(root|user)$ ]] || die "--as root or --as user"
    people=("$2")
    shift 2
fi
[[ ${1:-} != -* ]] || die "$1 is no command of ./dev: try-bare [--as root|user] [COMMAND…]"
declare -A masks=([root]=022 [user]=077)
mkdir -p "$bare"
exec 9<"$bare"
flock -n 9 || { trap - EXIT && die "another one is at work in ${bare#"$PWD"/}"; }
rm -rf --one-file-system "${bare:?}"/* "$logs"
mkdir -p "$logs"
for who in "${people[@]}"; do
    root=$bare/$who
    echo "try-bare: a bare Debian 12 for $who, with $([ $who = user ] && [ -d .git ] && echo "a clone" || echo "a tarball")"
    make_machine $who
    if [ $# -gt 0 ]; then
        try $who "$@"
    else
        try $who demo --once
        try $who test
    fi
    rm -rf --one-file-system "$root"
done
exit $failed
