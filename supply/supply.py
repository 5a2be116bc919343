#!/usr/bin/env python3
"""What the binary is made of, from Cargo's own metadata: checked against deny.toml, or listed as an SBOM.

    python3 supply/supply.py check [DENY.TOML]  # licences, sources, bans; exits 1 with one line for each finding
    python3 supply/supply.py sbom > sbom.json   # CycloneDX 1.5

It reads the parts of deny.toml that need no database: for advisories there is `cargo deny check`, which reads all of it.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(targets: list[str]) -> dict:
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    for target in targets:
        command += ["--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def shipped(tree: dict, kinds: tuple) -> list[dict]:
    """The packages that the root needs, through dependencies of these kinds (`None` is the usual one)."""
    nodes = {node["id"]: node for node in tree["resolve"]["nodes"]}
    root = tree["resolve"]["root"]
    found, left = {root}, [root]
    while left:
        at = left.pop()
        for dep in nodes[at]["deps"]:
            # Development dependencies of others are never built.
            wanted = kinds if at == root else tuple(kind for kind in kinds if kind != "dev")
            if dep["pkg"] not in found and any(kind["kind"] in wanted for kind in dep["dep_kinds"]):
                found.add(dep["pkg"])
                left.append(dep["pkg"])
    return sorted((p for p in tree["packages"] if p["id"] in found and p["id"] != root), key=lambda p: (p["name"], p["version"]))


def allows(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licences. `A/B` is how old crates write `A OR B`."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either() -> bool:
        met = both()
        while words and words[0] == "OR":
            words.pop(0)
            met = both() or met
        return met

    def both() -> bool:
        met = one()
        while words and words[0] == "AND":
            words.pop(0)
            met = one() and met
        return met

    def one() -> bool:
        word = words.pop(0)
        if word == "(":
            met = either()
            words.pop(0)
            return met
        if words and words[0] == "WITH":
            words.pop(0)
            word += " WITH " + words.pop(0)
        return word in allowed

    return either()


def findings(rules: dict, packages: list[dict]) -> list[str]:
    found = []
    allowed = set(rules["licenses"]["allow"])
    registries = {f"registry+{url}" for url in rules["sources"]["allow-registry"]}
    versions: dict[str, set[str]] = {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        versions.setdefault(package["name"], set()).add(package["version"])
        if not package["license"] or not allows(package["license"], allowed):
            found.append(f"{name}: licence {package['license']!r} is not among those that deny.toml allows")
        if package["source"] not in registries:
            found.append(f"{name}: comes from {package['source']}, which deny.toml does not allow")
    for ban in rules["bans"]["deny"]:
        have = versions.get(ban["crate"], set())
        if not ban.get("deny-multiple-versions") and have:
            found.append(f"{ban['crate']}: is banned: {ban['reason']}")
        elif len(have) > 1:
            found.append(f"{ban['crate']}: {len(have)} versions at once: {', '.join(sorted(have))}")
    return found


def sbom(tree: dict, packages: list[dict]) -> dict:
    root = next(p for p in tree["packages"] if p["id"] == tree["resolve"]["root"])
    digests = {}
    for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]:
        digests[package["name"], package["version"]] = package.get("checksum")

    def component(package: dict, kind: str) -> dict:
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        described = {
            "type": kind, "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl,
            "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}],
        }
        if digest := digests.get((package["name"], package["version"])):
            described["hashes"] = [{"alg": "SHA-256", "content": digest}]
        return described

    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": component(root, "application")},
        "components": [component(package, "library") for package in packages],
    }


def main() -> int:
    arguments = sys.argv[1:]
    deny = Path(arguments.pop(1)) if arguments[:1] == ["check"] and len(arguments) == 2 else ROOT / "deny.toml"
    rules = tomllib.loads(deny.read_text())
    tree = metadata(rules["graph"]["targets"])
    match arguments:
        case ["check"]:
            packages = shipped(tree, (None, "build", "dev"))
            found = findings(rules, packages)
            print("\n".join(found) or f"{len(packages)} packages: licences, sources and bans are as deny.toml says")
            return 1 if found else 0
        case ["sbom"]:
            print(json.dumps(sbom(tree, shipped(tree, (None,))), indent=1))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
