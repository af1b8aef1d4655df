"""`python -m serving.client` as a process of its own, against a real gRPC server."""

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import tensorflow as tf
from answering import answering
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from PIL import Image

ORIENTATION = 0x0112
RANKED = "  (log P, ranked relative to length)"


@pytest.fixture
def server():
    with answering() as running:
        yield running


@pytest.fixture
def ask(server, tmp_path):
    """Runs the program in the folder of the photos."""

    def run(*arguments, stderr=subprocess.PIPE):
        command = [sys.executable, "-W", "error", "-m", "serving.client", *map(str, arguments)]
        command += [] if "--server" in arguments else ["--server", server.address]
        environment = os.environ | {"PYTHONPATH": os.getcwd()}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        assert "Traceback" not in (done.stderr or "")
        rows = (
            [json.loads(line) for line in done.stdout.splitlines()] if "--json" in arguments else []
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr, rows=rows)

    return run


@pytest.fixture
def photos(tmp_path):
    """Ten photos, 11 to 20 pixels wide and 5 high."""
    for width in range(11, 21):
        Image.new("RGB", (width, 5), "red").save(tmp_path / f"{width}.png")
    return [f"{width}.png" for width in range(11, 21)]


def test_many_photos_go_in_batches(ask, server, photos):
    done = ask("caption", *photos, "--json", "--batch_size=4")
    assert (done.code, done.err) == (0, "")
    assert done.rows == [
        {"file": f"{w}.png", "captions": [f"a {w} by 5 photo"], "log_probs": [-1.5]}
        for w in range(11, 21)
    ]
    assert server.asked == [("caption", 4), ("caption", 4), ("caption", 2)]


def test_large_photos_go_in_several_requests(ask, server, tmp_path):
    for name in "abc":
        Image.new("RGB", (2300, 2300)).save(tmp_path / f"{name}.bmp")
    assert ask("caption", "a.bmp", "b.bmp", "c.bmp").out.count("2300 by 2300") == 3
    assert server.asked == [("caption", 2), ("caption", 1)]


def test_photos_go_as_they_are_unless_they_are_too_large(ask, tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "phone.jpg", exif=exif)
    assert ask("caption", "phone.jpg").out == f"phone.jpg{RANKED}\n   -1.500  a 300 by 200 photo\n"
    smaller = ask("caption", "phone.jpg", "--max_photo_bytes=9000").out
    width, height = map(int, re.search(r"a (\d+) by (\d+) photo", smaller).groups())
    assert width < 200 and height == pytest.approx(1.5 * width, abs=2)  # upright, and smaller


def test_a_bad_file_does_not_stop_the_others(ask, photos, tmp_path):
    (tmp_path / "notes.jpg").write_text("hello")
    (tmp_path / "folder.jpg").mkdir()
    np.save(tmp_path / "small.npy", np.zeros(2))
    np.save(tmp_path / "fits.npy", np.ones(3))
    files = ["nowhere.jpg", "notes.jpg", photos[0], "folder.jpg", "small.npy", "fits.npy"]
    done = ask("sentences", *files, "--json")
    assert done.code == 1
    assert done.err == "error: 4 of 6 inputs failed.\n"
    assert [row["file"] for row in done.rows] == files
    good = [row["sentences"][0] for row in done.rows if "sentences" in row]
    assert good == ["11 wide", "1 wide"]
    errors = [row["error"] for row in done.rows if "error" in row]
    for error, said in zip(
        errors, ["No such file", "no image", "directory", "features must be"], strict=True
    ):
        assert said in error

    done = ask("sentences", *files)
    assert done.code == 1
    assert "11.png  (log P - log P of any image)\n    3.000  one.jpg  11 wide\n" in done.out
    assert "nowhere.jpg: No such file or directory\n" in done.err
    assert "small.npy: " in done.err
    assert done.err.endswith("error: 4 of 6 inputs failed.\n")


def test_a_bad_file_and_a_text(ask):
    done = ask("score", "nowhere.jpg", "a dog")
    assert done.code == 1
    assert done.err == ("nowhere.jpg: No such file or directory\nerror: 1 of 1 inputs failed.\n")


def test_what_the_server_cannot_decode_is_an_error(ask, server, photos, monkeypatch):
    monkeypatch.setattr("answering.describe", lambda content: None)
    done = ask("caption", photos[0], "--json")
    assert done.code == 1
    [row] = done.rows
    assert "could not decode" in row["error"]


def test_one_photo_and_many_texts(ask, server, photos):
    done = ask("score", photos[0], "a zyx", "a dog runs", "--json", "--batch_size=1")
    assert done.code == 0
    assert [(row["file"], row["sentence"], row["num_words"]) for row in done.rows] == [
        ("11.png", "a zyx", 3), ("11.png", "a dog runs", 4)
    ]  # fmt: skip
    assert server.asked == [("encode_image", 1), ("sentence_log_prob", 1), ("sentence_log_prob", 1)]
    assert ask("score", photos[0], "a zyx").out == (
        "11.png  a zyx\n  -11.000  perplexity 39.121, 2 of 3 words known, the end counted\n"
    )


def test_a_sentence_of_too_many_words_is_an_error(ask, server, photos):
    done = ask("score", photos[0], "a " * 201, "a dog", "--json")
    assert done.code == 1 and "1 of 2 inputs failed" in done.err
    long, short = done.rows
    assert "more words than the model takes" in long["error"] and short["num_words"] == 3


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["beam", "11.png", "a dog"], f"11.png  a dog{RANKED}\n  -11.000  a dog runs\n"),
        (["beam", "11.png"], f"11.png{RANKED}\n  -11.000   runs\n"),
        (["next", "11.png", "a dog"], "11.png  a dog  (log P)\n   -0.500  dog\n   -1.000  größe\n"),
        (["next", "11.png"], "11.png  (log P)\n   -0.500  </s>\n   -1.000  größe\n"),
        (["encode", "11.png"], "11.png\n11 5 255\n"),
        (["prefix", "a dog"], "a dog  (log P of the words)\n    2.500  a dog.jpg\n"),
        (
            ["search", "dog", "cat"],
            "dog  (log P)\n    2.500  dog.jpg\ncat  (log P)\n    2.500  cat.jpg\n",
        ),
        (["similar", "11.png"], "11.png  (minus the distance)\n   -0.500  11.jpg\n"),
        (["rerank", "11.png"], "11.png  (consensus)\n    1.500  11 wide\n    1.000  a dog\n"),
        (["status"], "mrnn  version 7  AVAILABLE\nmrnn_index  version 7  AVAILABLE\n"),
        (["caption", "11.npy"], f"11.npy{RANKED}\n   -2.000   runs\n"),
        (["beam", "11.npy", "a"], f"11.npy  a{RANKED}\n   -2.000  a runs\n"),
        (["encode", "11.npy"], "11.npy\n2 3 4\n"),
    ],
    ids=" ".join,
)
def test_what_people_read(ask, photos, tmp_path, arguments, out):
    np.save(tmp_path / "11.npy", [2, 3, 4])
    done = ask(*arguments)
    assert (done.out, done.err, done.code) == (out, "", 0)


def test_json_of_the_other_commands(ask, photos):
    [encoded] = ask("encode", photos[0], "--json").rows
    assert encoded == {"file": "11.png", "features": [11.0, 5.0, 255.0], "refined": [1.0, 1.0]}
    [found] = ask("search", "ein Hund", "--json").rows
    assert found == {"sentence": "ein Hund", "ids": ["ein Hund.jpg"], "scores": [2.5]}
    assert ask("status", "--json").rows[0] == {"model": "mrnn", "versions": {"7": "AVAILABLE"}}


def test_status_of_a_server_without_the_index_or_the_model(ask, server):
    server.missing = {"mrnn_index"}
    done = ask("status")
    assert (done.code, done.out) == (0, "mrnn  version 7  AVAILABLE\nmrnn_index  not served\n")
    server.missing = {"mrnn"}
    done = ask("status")
    assert done.code == 1
    assert done.err == f"error: no version of mrnn is available at {server.address}.\n"


def test_status_does_not_wait_and_tells_what_is_being_loaded(ask, server):
    server.loading = 99
    done = ask("status")
    assert (done.code, done.out) == (
        75,
        "mrnn  version 7  LOADING\nmrnn_index  version 7  LOADING\n",
    )
    assert done.err == f"something is being loaded at {server.address}: ask again.\n"
    server.loading, server.unready = 0, 99
    done = ask("status")
    assert (done.code, done.out) == (75, "mrnn  not served\nmrnn_index  not served\n")


def test_what_is_being_loaded_is_waited_for(ask, server):
    server.loading = 2
    done = ask("search", "dog")
    assert (done.code, done.out) == (0, "dog  (log P)\n    2.500  dog.jpg\n")
    assert done.err == f"waiting until mrnn_index is loaded at {server.address}, up to 60 s\n"


FORGED = "a dog\x1b]0;mine\x07\nother.png\r\x9b31m\u202e\u2028end"


def forge(response):
    for proto in response.outputs.values():
        if proto.string_val:
            proto.string_val[0] = FORGED.encode()


def test_texts_of_a_server_cannot_move_the_cursor_or_forge_lines(ask, server, photos):
    server.change = forge
    for command in (["caption", photos[0]], ["search", "dog"], ["sentences", photos[0]]):
        shown = ask(*command).out.splitlines(keepends=True)
        assert len(shown) == (3 if command[0] == "sentences" else 2)
        assert all(line[:-1].isprintable() and line[-1] == "\n" for line in shown)
    done = ask("caption", photos[0], "--json")
    assert done.rows[0]["captions"] == [FORGED]
    assert done.out[:-1].isprintable()
    server.change = lambda _: None
    server.refusals = [(grpc.StatusCode.INTERNAL, FORGED)]
    done = ask("caption", photos[0])
    assert done.code == 1 and done.err[:-1].isprintable() and "\\x1b" in done.err


def test_names_of_files_are_escaped_too(ask, tmp_path):
    Image.new("RGB", (3, 5)).save(tmp_path / "a\x1b[2J\n.png")
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_text("hello")
    done = ask("caption", "a\x1b[2J\n.png", os.fsdecode(b"\xff.jpg"))
    assert done.out == f"a\\x1b[2J\\n.png{RANKED}\n   -1.500  a 3 by 5 photo\n"
    assert done.err.startswith("\\udcff.jpg: no image")
    assert ask("caption", os.fsdecode(b"\xff.jpg"), "--json").rows[0]["file"] == "\udcff.jpg"


def test_a_pipe_is_no_photo(ask, tmp_path):
    os.mkfifo(tmp_path / "photo.jpg")
    done = ask("caption", "photo.jpg")
    assert done.code == 1 and done.err.startswith("photo.jpg: no file, but a pipe")


def test_json_has_no_infinity(ask, server, photos):
    def change(response):
        if "perplexity" in response.outputs:
            tensor = tf.make_tensor_proto(np.float32([np.inf]))
            response.outputs["perplexity"].CopyFrom(tensor)

    server.change = change
    assert ask("score", photos[0], "a dog", "--json").rows[0]["perplexity"] is None


def nothing(response):
    if "scores" in response.outputs:
        missing = np.full([len(response.outputs["ids"].string_val) // 2, 2], np.float32(-3.4e38))
        response.outputs["scores"].CopyFrom(tf.make_tensor_proto(missing))
    if "values" in response.outputs:
        response.outputs["values"].string_val[:] = [b"3"]


def test_a_search_that_finds_nothing_says_why(ask, server):
    server.change = nothing
    done = ask("search", "zyx zyx", "a zyx", "", "a " * 201)
    assert done.code == 0
    assert [line.split(": ", 1)[1] for line in done.out.splitlines() if "nothing" in line] == [
        "the index knows none of these words: zyx zyx",
        "the index has no images",
        "it has no words",
        "it has more words than the index takes",
    ]
    [row] = ask("search", "zyx", "--json").rows
    assert row["ids"] == [] and row["reason"].endswith("none of these words: zyx")
    server.missing = {"model_info"}
    assert "knows none of its words, takes fewer words, or" in ask("search", "zyx").out


def test_ctrl_c_is_one_line(server, tmp_path):
    server.delay = 30
    command = [sys.executable, "-m", "serving.client", "search", "a", "--server", server.address]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not server.asked:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "stopped by Ctrl-C\n")


def test_a_model_without_an_encoder_takes_features_only(ask, server, photos, tmp_path):
    server.missing = {"caption", "encode_image"}
    np.save(tmp_path / "f.npy", [2, 3, 4])
    for command in (["caption", photos[0]], ["score", photos[0], "a dog"], ["encode", photos[0]]):
        done = ask(*command)
        assert done.code == 1
        assert done.err.startswith("error: mrnn at ") and done.err.count("\n") == 1
        assert "exported without an image encoder" in done.err
    assert ask("caption", "f.npy").code == ask("score", "f.npy", "a dog").code == 0


def test_versions(ask, server, photos):
    assert ask("sentences", photos[0], "--version=stable", "--index_version=7").code == 0
    for flag, model in (("--version=8", "mrnn"), ("--index_version=canary", "mrnn_index")):
        done = ask("sentences", photos[0], flag)
        assert done.code == 1
        assert f"does not serve {model} (version {flag.split('=')[1]})" in done.err


BAD = {
    "no command": ([], "'' is no command; there are caption,"),
    "command": (["captions"], "'captions' is no command"),
    "no photo": (["caption"], "caption takes PHOTO ..."),
    "no sentence": (["score", "11.png"], "score takes PHOTO SENTENCE ..."),
    "no photo to go on": (["beam"], "beam takes PHOTO [PREFIX ...]"),
    "nothing to search": (["search"], "search takes SENTENCE ..."),
    "flag": (["status", "--tiemout=3"], "tiemout"),
    "timeout": (["status", "--timeout=0"], "timeout"),
    "batch size": (["status", "--batch_size=0"], "batch_size"),
    "no tls": (["status", "--ca_file=ca.pem"], "--ca_file needs --tls"),
    "half a pair": (["status", "--tls", "--key_file=k"], "--key_file and --cert_file"),
    "no such file": (["status", "--tls", "--ca_file=ca.pem"], "ca.pem"),
    "no server": (
        ["status", "--server", "127.0.0.1:1", "--retries=0"],
        "--model_base_path models --port 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_one_sentence(ask, photos, case):
    arguments, sentence = BAD[case]
    done = ask(*arguments)
    assert done.code == 1
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert sentence in done.err


@pytest.mark.parametrize("error", ["UserError", "ValueError"])
def test_only_a_users_mistake_is_one_sentence_and_a_bug_keeps_its_traceback(error):
    code = f"""
from mrnn_tf.errors import UserError
from serving import commands
def fail(_):
    raise {error}("something is wrong.")
commands.main = fail
commands.run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    if error == "UserError":
        assert done.stderr == "error: something is wrong.\n"
    else:
        assert "Traceback" in done.stderr and "ValueError: something is wrong." in done.stderr


def test_progress_is_shown_on_a_terminal_only(ask, photos):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = ask("caption", *photos, "--batch_size=1", stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert done.code == 0
    assert b"/10 [" in shown
    assert done.out.count("photo") == 10
    assert ask("caption", *photos).err == ""


def certificate(folder, name: str) -> tuple[bytes, bytes]:
    """A key and its own certificate for 127.0.0.1; also written to files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    parts = (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        signed.public_bytes(pem),
    )
    for part, suffix in zip(parts, ("key", "crt"), strict=True):
        (folder / f"{name}.{suffix}").write_bytes(part)
    return parts


def test_tls_with_the_certificates_of_both_sides(ask, tmp_path):
    pair = certificate(tmp_path, "server")
    _, trusted = certificate(tmp_path, "client")
    credentials = grpc.ssl_server_credentials([pair], trusted, require_client_auth=True)
    with answering(credentials) as server:
        arguments = ["status", "--server", server.address, "--retries=0", "--timeout=10"]
        trusting = [*arguments, "--tls", "--ca_file=server.crt"]
        done = ask(*trusting, "--key_file=client.key", "--cert_file=client.crt")
        assert done.code == 0, done.err
        for refused in (arguments, [*arguments, "--tls"], trusting):
            done = ask(*refused)
            assert done.code == 1
            assert "no server answers at" in done.err


def test_a_request_for_rest_asks_no_server(ask, server, photos, tmp_path):
    done = ask("request", *photos[:2])
    contents = [base64.b64decode(each["b64"]) for each in json.loads(done.out)["instances"]]
    assert contents == [(tmp_path / name).read_bytes() for name in photos[:2]]
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    done = ask("request", "large.png", "--max_photo_bytes=20000")
    [content] = [base64.b64decode(each["b64"]) for each in json.loads(done.out)["instances"]]
    assert len(content) <= 20_000
    done = ask("request", photos[0], "missing.png")
    assert done.code == 1 and not done.out and "missing.png: No such file" in done.err
    assert server.asked == []
