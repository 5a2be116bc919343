//! The script that checks what the binary is made of finds what it should.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

mod support;

use std::path::Path;
use std::process::Command;

use support::Folder;

fn supply(arguments: &[&str]) -> (bool, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command.current_dir(root).arg("supply/supply.py").args(arguments);
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_packages_are_as_deny_toml_says_and_what_is_not_is_found() {
    let (good, said) = supply(&["check"]);
    assert!(good, "{said}");
    let rules = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).unwrap();
    let folder = Folder::new("deny");
    for (old, new, found) in [
        ("\"ISC\", ", "", "ring 0."),
        ("\"MIT\", ", "", "tokio 1."),
        ("crates.io-index\"]", "other-index\"]", "comes from"),
        (
            "{ crate = \"tokio\", deny-multiple-versions = true }",
            "{ crate = \"tokio\", reason = \"x\" }",
            "is banned",
        ),
        ("{ crate = \"tokio\", d", "{ crate = \"getrandom\", d", "versions at once"),
    ] {
        assert!(rules.contains(old), "{old}");
        let file = folder.write("deny.toml", rules.replace(old, new));
        let (good, said) = supply(&["check", file.to_str().unwrap()]);
        assert!(!good && said.contains(found), "{old} to {new}: {said}");
    }
}

#[test]
fn the_bill_of_materials_lists_every_package_with_its_licence_and_digest() {
    let (good, said) = supply(&["sbom"]);
    assert!(good);
    let bill: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["name"], "fencegate");
    let components = bill["components"].as_array().unwrap();
    for name in ["rustls", "ring", "hyper", "zookeeper-client"] {
        let found = components.iter().find(|component| component["name"] == name).unwrap();
        assert_eq!(found["hashes"][0]["content"].as_str().unwrap().len(), 64, "{found}");
        assert!(found["licenses"][0]["expression"].is_string(), "{found}");
    }
    assert!(!components.iter().any(|component| component["name"] == "tower-test"));
}
