//! The rules of imports and files, enforced over whatever is in `src/` and in the repository.
//!
//! Each rule is a function from a file to findings, and is tried here on bad samples first. It reads words, not types:
//! comments and strings never count as code.

#[path = "tidy/reading.rs"]
mod reading;
#[path = "tidy/rules.rs"]
mod rules;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use reading::Source;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn imports_run_one_way() {
    report(rules::layers(&sources("src")));
}

#[test]
fn the_fence_is_pure() {
    report(sources("src").iter().flat_map(rules::pure_fence).collect());
}

#[test]
fn only_the_zookeeper_elections_name_its_client() {
    report(sources("src").iter().flat_map(rules::one_zookeeper_client).collect());
}

#[test]
fn only_one_file_reads_a_clock() {
    report(sources("src").iter().flat_map(rules::one_clock).collect());
}

#[test]
fn metric_names_stand_in_one_file() {
    report(sources("src").iter().flat_map(rules::one_file_of_metrics).collect());
}

#[test]
fn every_file_says_first_what_it_is() {
    let files = [sources("src"), sources("tests")].concat();
    report(files.iter().flat_map(rules::opening).collect());
}

#[test]
fn no_file_is_a_hall_of_everything() {
    report(sources("src").iter().flat_map(rules::length).collect());
}

#[test]
fn the_repository_speaks_of_the_product_only() {
    let files: Vec<Source> = walk(Path::new(ROOT)).iter().filter_map(|path| read(path)).collect();
    assert!(files.iter().any(|file| file.name == "Cargo.toml"), "the whole repository is read");
    report(files.iter().flat_map(rules::product_only).collect());
}

#[track_caller]
fn report(findings: Vec<String>) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// The Rust files below a folder of the repository.
fn sources(folder: &str) -> Vec<Source> {
    let found: Vec<Source> = walk(&Path::new(ROOT).join(folder))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| read(&path))
        .collect();
    assert!(!found.is_empty(), "nothing in {folder}");
    found
}

/// A text file, named by its path in the repository; nothing if it is not text.
fn read(path: &Path) -> Option<Source> {
    let name = path.strip_prefix(ROOT).ok()?;
    let text = String::from_utf8(fs::read(path).ok()?).ok()?;
    Some(Source::new(name.to_str()?, &text))
}

/// All files below a folder, without what is built and Git's own.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries: BTreeSet<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    for path in entries {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            let name = name.to_string_lossy();
            if name != ".git" && !name.starts_with("target") {
                files.extend(walk(&path));
            }
        } else if name != ".git" {
            files.push(path);
        }
    }
    files
}
