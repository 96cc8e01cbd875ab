"""A kind node image of our own: Debian, systemd, containerd, the built binaries, and the images kubeadm asks for."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.machine.engine import HOST, docker
from e2e.machine.steps import BIN, CACHE, FILES, apt_install, run, step
from e2e.machine.tools import KUBERNETES, TOOLS

NODE = "kindest/node:loadgen-e2e"
BASE = "loadgen-e2e/debian:bookworm"
BUSYBOX = "loadgen-e2e/busybox:1"
_SUITE = "bookworm"

_NODE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iptables", "nftables",
    "conntrack", "iproute2", "ethtool", "socat", "kmod", "procps", "mount", "ca-certificates", "util-linux",
    "hostname", "jq",
)  # fmt: skip
_BASE_PACKAGES = (
    "ca-certificates", "python3", "python3-venv", "python3-pip", "gcc", "libc6-dev", "clang", "libbpf-dev", "libbpf1",
    "nftables", "musl-tools", "python3-dev", "linux-libc-dev",
)  # fmt: skip
_MASKED = (
    "systemd-udevd.service", "systemd-networkd.service", "systemd-logind.service", "getty.target",
    "console-getty.service", "dev-hugepages.mount", "sys-fs-fuse-connections.mount", "systemd-udev-trigger.service",
    "systemd-random-seed.service", "systemd-remount-fs.service", "apt-daily.timer", "apt-daily-upgrade.timer",
    "fstrim.timer", "e2scrub_reap.timer",
)  # fmt: skip

# kubeadm config images list --kubernetes-version 1.34.4
_CONTROL_PLANE = {
    "kube-apiserver": f"registry.k8s.io/kube-apiserver:{KUBERNETES}",
    "kube-controller-manager": f"registry.k8s.io/kube-controller-manager:{KUBERNETES}",
    "kube-scheduler": f"registry.k8s.io/kube-scheduler:{KUBERNETES}",
    "etcd": "registry.k8s.io/etcd:3.6.5-0",
    "coredns": "registry.k8s.io/coredns/coredns:v1.12.1",
}
PROXY = f"registry.k8s.io/kube-proxy:{KUBERNETES}"
PAUSE = "registry.k8s.io/pause:3.10.1"
_PATH = "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build() -> None:
    """Make the node image and the images beside it, unless they are there already, made of the same things."""
    apt_install(["debootstrap", "busybox-static", "gcc", "libc6-dev"])
    mark = _fingerprint()
    if docker("images", "-q", "--filter", f"label=loadgen-e2e={mark}", NODE).strip():
        return
    root = _rootfs("node", _NODE_PACKAGES)
    with step("images of the control plane, from scratch"):
        images = [_scratch(name, [(BIN / binary, f"usr/local/bin/{binary}")], binary) for binary, name in
                  _CONTROL_PLANE.items() if binary != "coredns"]  # fmt: skip
        images.append(_scratch(_CONTROL_PLANE["coredns"], [(BIN / "coredns", "coredns")], "/coredns"))
        images.append(_pause())
        images.append(_busybox())
        images.append(_kube_proxy(root))
    with step("node image"):
        _furnish(root)
        _assemble(root, images, mark)


def build_base() -> None:
    """The Debian that our Dockerfile builds upon here."""
    if docker("images", "-q", BASE).strip():
        return
    root = _rootfs("base", _BASE_PACKAGES)
    with step("base image"):
        # Whoever builds needs to trust what this machine trusts.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
        _import(root, BASE)


def _fingerprint() -> str:
    told = [repr(TOOLS), *(path.read_text() for path in sorted(FILES.iterdir())), Path(__file__).read_text()]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _rootfs(name: str, packages: tuple[str, ...]) -> Path:
    """A fresh Debian tree; the archive of it stays in the cache."""
    archive = CACHE / f"{name}-{hashlib.sha256(repr(packages).encode()).hexdigest()[:12]}.tar"
    root = CACHE / f"{name}-root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    if not archive.exists():
        with step(f"debootstrap {_SUITE} ({name})"):
            run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", _SUITE, root)
            partial = archive.with_suffix(".part")
            run("tar", "-C", root, "--exclude=./var/cache/apt/archives/*.deb", "-cf", partial, ".")
            partial.rename(archive)
        return root
    run("tar", "-C", root, "-xf", archive)
    return root


def _import(root: Path, name: str) -> None:
    tar = subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run(["docker", "-H", HOST, "import", "-", name], stdin=tar.stdout, check=True, capture_output=True)
    if tar.wait() != 0:
        raise SystemExit(f"e2e: tar of {root} failed")


def _scratch(name: str, files: list[tuple[Path, str]], entry: str) -> str:
    """An image of these files (source, path in the image) and nothing else."""
    with tempfile.TemporaryDirectory(prefix="loadgen-e2e-") as folder:
        root = Path(folder) / "root"
        (root / "tmp").mkdir(parents=True, mode=0o1777)
        for source, target in files:
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / target, follow_symlinks=True)
        return _from_scratch(name, Path(folder), entry)


def _from_scratch(name: str, folder: Path, entry: str) -> str:
    (folder / "Dockerfile").write_text(f'FROM scratch\nCOPY root/ /\n{_PATH}\nENTRYPOINT ["{entry}"]\n')
    docker("build", "-q", "-t", name, folder)
    return name


def _pause() -> str:
    binary = CACHE / "pause"
    run("gcc", "-Os", "-static", "-s", "-o", binary, FILES / "pause.c")
    docker("tag", _scratch(PAUSE, [(binary, "pause")], "/pause"), "registry.k8s.io/pause:3.10")
    return PAUSE


def _busybox() -> str:
    with tempfile.TemporaryDirectory(prefix="loadgen-e2e-") as folder:
        there = Path(folder) / "root/bin"
        there.mkdir(parents=True)
        shutil.copy("/bin/busybox", there / "busybox")
        for applet in run("/bin/busybox", "--list").split():
            if applet != "busybox":
                (there / applet).symlink_to("busybox")
        return _from_scratch(BUSYBOX, Path(folder), "/bin/sh")


def _kube_proxy(node: Path) -> str:
    """kube-proxy with the node's iptables, nft and conntrack, and every library that these and their plugins load."""
    with tempfile.TemporaryDirectory(prefix="loadgen-e2e-") as folder:
        root = Path(folder) / "root"
        programs = ["xtables-nft-multi", "xtables-legacy-multi", "nft", "conntrack"]
        plugins = sorted((node / "usr/lib/x86_64-linux-gnu/xtables").glob("*.so"))
        wanted = [node / "usr/sbin" / name for name in programs]
        for path in [*wanted, *plugins, *_libraries(node, [*wanted, *plugins])]:
            target = root / path.relative_to(node)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        for link in [*(node / "usr/sbin").glob("ip*tables*")]:
            shutil.copy(link, root / "usr/sbin" / link.name, follow_symlinks=False)
        shutil.copytree(node / "etc/alternatives", root / "etc/alternatives", symlinks=True)
        (root / "usr/local/bin").mkdir(parents=True)
        shutil.copy(BIN / "kube-proxy", root / "usr/local/bin/kube-proxy")
        (root / "sbin").symlink_to("usr/sbin")
        return _from_scratch(PROXY, Path(folder), "/usr/local/bin/kube-proxy")


def _libraries(root: Path, binaries: list[Path]) -> list[Path]:
    inside = [f"/{path.relative_to(root)}" for path in binaries]
    told = subprocess.run(["chroot", str(root), "ldd", *inside], capture_output=True, text=True, check=False).stdout
    names = {word for line in told.splitlines() for word in line.split() if word.startswith("/") and ":" not in word}
    return sorted(root / name.lstrip("/") for name in names)


def _furnish(root: Path) -> None:
    """Everything kind expects of a node, see kind's own node image for the places."""
    for name in ("kubeadm", "kubelet", "kubectl"):
        shutil.copy(BIN / name, root / "usr/bin" / name)
    shutil.copy(BIN / "crictl", root / "usr/local/bin/crictl")
    for source, target, mode in (
        ("entrypoint", "usr/local/bin/entrypoint", 0o755),
        ("kubelet-cgroups", "usr/local/bin/kubelet-cgroups", 0o755),
        ("runc-bounded", "usr/local/sbin/runc-bounded", 0o755),
        ("kubelet.service", "etc/systemd/system/kubelet.service", 0o644),
        ("containerd.toml", "etc/containerd/config.toml", 0o644),
        ("plain-cni.sh", "kind/plain-cni.sh", 0o644),
        ("default-cni.yaml", "kind/manifests/default-cni.yaml", 0o644),
        ("default-storage.yaml", "kind/manifests/default-storage.yaml", 0o644),
    ):
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES / source, root / target)
        (root / target).chmod(mode)
    (root / "kind/version").write_text(KUBERNETES)
    (root / "etc/crictl.yaml").write_text("runtime-endpoint: unix:///run/containerd/containerd.sock\n")
    shutil.copytree(root / "usr/lib/cni", root / "opt/cni/bin", dirs_exist_ok=True)
    for folder in ("etc/cni/net.d", "etc/kubernetes/manifests"):  # kubelets complain every second without the latter
        (root / folder).mkdir(parents=True, exist_ok=True)
    run("chroot", root, "systemctl", "enable", "containerd", "kubelet")
    run("chroot", root, "systemctl", "mask", *_MASKED)
    run("chroot", root, "systemctl", "set-default", "multi-user.target")


def _assemble(root: Path, images: list[str], mark: str) -> None:
    """The tree as an image, with `images` in its containerd's store."""
    _import(root, "loadgen-e2e/node-root")
    archive = CACHE / "node-images.tar"
    docker("save", "-o", archive, *images, "registry.k8s.io/pause:3.10")
    container = docker(
        "run", "-d", "--privileged", "-v", f"{archive}:/images.tar:ro", "--entrypoint", "sleep",
        "loadgen-e2e/node-root", "infinity",
    ).strip()  # fmt: skip
    try:
        docker("exec", "--privileged", container, "sh", "-euc", _LOAD_IMAGES)
        docker("commit", container, "loadgen-e2e/node-loaded")
    finally:
        docker("rm", "-f", container)
        archive.unlink()
    lines = (
        "FROM loadgen-e2e/node-loaded",
        "ENV container=docker",
        "STOPSIGNAL SIGRTMIN+3",
        f"LABEL loadgen-e2e={mark}",
        'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]',
    )
    docker("build", "-q", "-t", NODE, "-", text="\n".join(lines))


_LOAD_IMAGES = """
mkdir -p /run/containerd
containerd >/dev/null 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.2; done
ctr -n k8s.io images import --no-unpack --all-platforms /images.tar
kill $!
wait $! || :
rm -rf /run/containerd
"""
