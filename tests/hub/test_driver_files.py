from gpulab_hub.driver_files import TARGET, bind_libraries, cached_libraries, find


def test_what_a_container_needs_is_bound_and_nothing_else(tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "bin").mkdir()
    for name in (
        "libcuda.so.1",
        "libcuda.so.580.95.05",
        "libnvidia-ml.so.1",
        "libGLX_nvidia.so.0",
        "libc.so.6",
    ):
        (tmp_path / "lib64" / name).touch()
    (tmp_path / "bin" / "nvidia-smi").touch()
    for node in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / node).touch()
    files = find(tmp_path, dev=tmp_path)
    target = TARGET
    assert files.binds == {
        f"{tmp_path}/lib64/libcuda.so.1": f"{target}/libcuda.so.1",
        f"{tmp_path}/lib64/libcuda.so.580.95.05": f"{target}/libcuda.so.580.95.05",
        f"{tmp_path}/lib64/libnvidia-ml.so.1": f"{target}/libnvidia-ml.so.1",
        f"{tmp_path}/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }
    assert files.node_root == str(tmp_path)
    assert files.absent_nodes == {"nvidia-uvm-tools"}


def test_the_first_of_two_equal_names_is_bound(tmp_path):
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "libcuda.so.1").touch()
    binds = bind_libraries([tmp_path / "a" / "libcuda.so.1", tmp_path / "b" / "libcuda.so.1"])
    assert list(binds) == [f"{tmp_path}/a/libcuda.so.1"]


def test_a_32_bit_library_of_the_same_name_is_left_out(tmp_path):
    (tmp_path / "libcuda.so.580.95.05").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    found = cached_libraries(
        "2 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {tmp_path}/libcuda.so.1\n"
        f"\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => {tmp_path}/libc.so.6\n"
        "\tld-linux-aarch64.so.1 (libc6,AArch64) => /lib/ld-linux-aarch64.so.1\n"
    )
    assert [path.name for path in found if path.parent == tmp_path] == [
        "libcuda.so.1",
        "libcuda.so.580.95.05",
        "libc.so.6",
        "libc.so.6",
    ]
    assert "i386" not in str(found)
    assert found[-1].name.startswith("ld-linux-aarch64")
