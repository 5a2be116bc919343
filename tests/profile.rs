//! The profile of release builds: what `pgo/rustc` adds to which compilation, asked of it with `echo` for a compiler.
//!
//! It compiles nothing and says nothing about speed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The arguments that the compiler is called with.
fn compiled_with(level: &str, pgo: Option<&str>) -> Vec<String> {
    let mut command = Command::new(Path::new(ROOT).join("pgo/rustc"));
    command.args(["echo", "--crate-name", "a b", "-C", &format!("opt-level={level}"), "--emit=link"]);
    command.env_remove("FENCEGATE_PGO");
    command.envs(pgo.map(|pgo| ("FENCEGATE_PGO", pgo)));
    let done = command.output().expect("pgo/rustc is executable");
    assert!(done.status.success());
    let said = String::from_utf8(done.stdout).unwrap();
    said.trim_end().split(" --emit=link").map(str::trim).map(str::to_owned).collect()
}

#[test]
fn optimised_code_gets_the_profile_and_all_else_is_left_alone() {
    let profile = Path::new(ROOT).join("pgo/fencegate.profdata");
    assert!(profile.is_file(), "{} is missing: pgo/record.sh", profile.display());
    let with_it = format!("-Cprofile-use={}", profile.display());
    assert_eq!(compiled_with("3", None), ["--crate-name a b -C opt-level=3", &with_it]);
    assert_eq!(compiled_with("0", None), ["--crate-name a b -C opt-level=0", ""]);
}

#[test]
fn the_environment_turns_it_off_or_records_another() {
    assert_eq!(compiled_with("3", Some("off"))[1], "");
    assert_eq!(compiled_with("3", Some("/a/folder"))[1], "-Cprofile-generate=/a/folder");
    assert_eq!(compiled_with("0", Some("/a/folder"))[1], "", "macros that run while building are no load");
}

#[test]
fn cargo_is_told_to_ask_for_it() {
    let config = std::fs::read_to_string(Path::new(ROOT).join(".cargo/config.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    assert_eq!(config["build"]["rustc-wrapper"].as_str(), Some("pgo/rustc"));
}
