"""The commands of README, as a reader pastes them."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

README = (Path(__file__).parent.parent / "README.md").read_text()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_the_serving_block_can_be_pasted_as_a_whole(searchable_models, tmp_path):
    [block] = [part for part in README.split("\n\n") if "-m serving.local" in part]
    grpc, rest = free_ports(2)  # the default ones may be taken on the machine of a test
    block = re.sub(r"(serving\.local.*?) &", rf"\1 --port={grpc} --rest_api_port={rest} &", block)
    block = block.replace("serving.client ", f"serving.client --server=127.0.0.1:{grpc} ")
    block = block.replace(":8501/", f":{rest}/").replace("python ", f"{sys.executable} ")
    (tmp_path / "models").symlink_to(searchable_models)
    (tmp_path / "photo.jpg").write_bytes(tiny.picture(0))
    script = f"set -e\ntrap 'kill %1; wait' EXIT\n{block}\n"
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        ["bash", "-m", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert f"waiting for a server at 127.0.0.1:{grpc}, up to 60 s\n" in done.stderr
    for heading in (r"photo\.jpg  \(log P, ranked", r"a dog on the beach  \(log P\)"):
        assert re.search(rf"^{heading}", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert '"predictions"' in done.stdout, done.stdout + done.stderr


def test_every_link_between_documents_leads_to_a_file_that_is_kept():
    root = Path(__file__).parent.parent
    kept = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    if kept.returncode:
        pytest.skip("this is no checkout of git")
    files = set(kept.stdout.split())
    folders = {str(parent) for file in files for parent in Path(file).parents}
    for document in sorted(file for file in files if file.endswith(".md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (root / document).read_text()):
            path = os.path.normpath(os.path.join(os.path.dirname(document), link))
            assert path in files | folders, f"{document} links to {link}"
